"""SegmentCache: the ids of texts encoded lately, bounded in bytes; the least recently used entry is dropped first.

Text and ids in, ids out. Knows no tokenizer. Safe to call from any thread.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from struct import pack
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

# An array takes a tenth of the memory of a tuple of ints.
if TYPE_CHECKING:
    Ids: TypeAlias = array[int]
else:
    Ids = array  # not subscriptable before Python 3.12

# An entry's share of the table, and the overhead of its two objects. It also bounds the number of entries.
_ENTRY_BYTES = 256
_LARGEST_SHARE = 4  # an entry takes a quarter of the cache at most, so that one document does not push out every chat


class SegmentCache:
    """A cache whose key is the text itself, so a hit is always exact."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, Ids] = OrderedDict()
        self._lock = Lock()
        self.bytes = 0
        """The bytes in use: texts, ids and overhead."""

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<SegmentCache {len(self)} segments, {self.bytes} of {self._max_bytes} bytes>"

    def find(self, texts: Sequence[str]) -> list[Ids | None]:
        """Returns the ids of each text, None for those not cached. Marks the found ones as used."""
        with self._lock:
            found = list(map(self._entries.get, texts))
            for text, ids in zip(texts, found, strict=True):
                if ids is not None:
                    self._entries.move_to_end(text)
        return found

    def store(self, text: str, token_ids: Sequence[int]) -> None:
        ids = array("i", pack(f"{len(token_ids)}i", *token_ids))  # takes half the time of array("i", token_ids)
        size = size_of(text, ids)
        if size * _LARGEST_SHARE > self._max_bytes:
            return
        with self._lock:
            if text in self._entries:  # another thread encoded it meanwhile
                return
            self._entries[text] = ids
            self.bytes += size
            while self.bytes > self._max_bytes:
                self.bytes -= size_of(*self._entries.popitem(last=False))


def size_of(text: str, ids: Ids) -> int:
    """Returns the bytes that an entry counts for."""
    return sys.getsizeof(text) + ids.itemsize * len(ids) + _ENTRY_BYTES
