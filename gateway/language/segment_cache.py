"""SegmentCache: the ids of texts encoded lately, least recently used out first, bounded in bytes.

Text and ids in, ids out; knows no tokenizer. Safe to call from any thread.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from struct import pack
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

# A tenth of what a tuple of ints takes.
if TYPE_CHECKING:
    Ids: TypeAlias = array[int]
else:
    Ids = array  # not subscriptable before Python 3.12

# An entry's share of the table and of the two objects' own bookkeeping. It also bounds how many entries there can be.
_ENTRY_BYTES = 256
_LARGEST_SHARE = 4  # an entry takes a quarter at most, so that one document does not push out every chat


class SegmentCache:
    """Keyed by the text itself, so that a hit is exact by nature."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[str, Ids] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0
        """Held now: texts, ids and bookkeeping."""

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self)} segments, {self.bytes} of {self._most_bytes} bytes>"

    def find(self, texts: Sequence[str]) -> list[Ids | None]:
        """The ids of each text, None where they are not known; those found count as used."""
        with self._lock:
            found = list(map(self._entries.get, texts))
            for text, ids in zip(texts, found, strict=True):
                if ids is not None:
                    self._entries.move_to_end(text)
        return found

    def keep(self, text: str, token_ids: Sequence[int]) -> None:
        ids = array("i", pack(f"{len(token_ids)}i", *token_ids))  # half the time of an array made of the ids one by one
        size = size_of(text, ids)
        if size * _LARGEST_SHARE > self._most_bytes:
            return
        with self._lock:
            if text in self._entries:  # another thread encoded it meanwhile
                return
            self._entries[text] = ids
            self.bytes += size
            while self.bytes > self._most_bytes:
                self.bytes -= size_of(*self._entries.popitem(last=False))


def size_of(text: str, ids: Ids) -> int:
    """What an entry counts for, in bytes."""
    return sys.getsizeof(text) + ids.itemsize * len(ids) + _ENTRY_BYTES
