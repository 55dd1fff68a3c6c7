"""Reads the usual token event without parsing its JSON, by what it has in common with the events before it.

In: an event that was parsed. Out: whether a later line is the same event with other plain text and the next count.
Anything else goes to the parser: where a shape is not sure, it does not match. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

TEXT = b'"content":"'
COUNT = re.compile(rb'"(completion_tokens|total_tokens)":([0-9]+)(?=[,}])')


@dataclass(slots=True)
class Endings:
    """The bytes after the text, which change with the count of tokens. `template` has a %d for each of `offsets`, where
    the count plus that offset stands.

    Shared by all answers whose events end alike: rendering an ending costs more than comparing it.
    """

    template: bytes
    offsets: tuple[int, ...]
    _known: dict[int, bytes] = field(default_factory=dict)

    def at(self, count: int) -> bytes:
        ending = self._known.get(count)
        if ending is None:
            ending = self.template % tuple([count + offset for offset in self.offsets])
            self._known[count] = ending
        return ending


@dataclass(frozen=True, slots=True)
class EventShape:
    """A line of data: the bytes `before` the text and `after` it. Where the server counts tokens, the bytes after the
    text change with every token and come from `endings`.
    """

    before: bytes
    after: bytes
    endings: Endings | None
    prompt_tokens: int | None  # None where the server does not count

    @classmethod
    def of(cls, line: bytes, chunk: Mapping[str, object]) -> Self | None:
        """Returns the shape of `line`, which was parsed as `chunk`; None if a similar line could mean something else.

        Without a backslash every quote opens or closes a string, so `"content":` and the names of counts are keys. Each
        of them occurs once and has a plain value: another text, or another number, changes only that value.
        """
        text = _find_text(chunk)
        before, key, rest = line.partition(TEXT)
        if not text or not key or b"\\" in line or line.count(b'"content"') > 1 or not rest.startswith(text + b'"'):
            return None
        usage = chunk.get("usage")
        if usage is None:
            return cls(before + key, rest[len(text) :], None, None)
        if not isinstance(usage, Mapping):
            return None
        return cls._of_counted(before + key, rest[len(text) :], usage)

    @classmethod
    def _of_counted(cls, before: bytes, after: bytes, usage: Mapping[str, object]) -> Self | None:
        count, prompt_tokens = usage.get("completion_tokens"), usage.get("prompt_tokens")
        found = {match[1]: int(match[2]) for match in COUNT.finditer(after)}
        is_sure = all((before + after).count(b'"%b"' % key) == 1 for key in found)
        if not isinstance(count, int) or not isinstance(prompt_tokens, int):
            return None
        if not is_sure or found.get(b"completion_tokens") != count:
            return None
        template = COUNT.sub(rb'"\1":%d', after.replace(b"%", b"%%"))
        offsets = tuple(number - count for number in found.values())
        return cls(before, after, _endings(template, offsets), prompt_tokens)

    def matches(self, line: bytes, count: int) -> bool:
        """Whether `line` has this shape, with `count` tokens so far where the server counts."""
        before = self.before
        after = self.endings.at(count) if self.endings else self.after
        if not line.startswith(before) or not line.endswith(after):
            return False
        return is_plain(line[len(before) : len(line) - len(after)])


@lru_cache(maxsize=64)
def _endings(template: bytes, offsets: tuple[int, ...]) -> Endings:
    return Endings(template, offsets)


def is_plain(text: bytes) -> bool:
    """Whether this is non-empty text that JSON does not escape. False for some such text: that with unusual blanks."""
    try:
        words = text.decode()
    except UnicodeDecodeError:
        return False
    return bool(words) and words.isprintable() and '"' not in words and "\\" not in words


def _find_text(chunk: Mapping[str, object]) -> bytes | None:
    """Returns the text of a chunk whose one choice is unfinished; None for other chunks and text that is not plain."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or choices[0].get("finish_reason"):
        return None
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, Mapping) else None
    if not isinstance(text, str):
        return None
    return text.encode() if is_plain(text.encode()) else None
