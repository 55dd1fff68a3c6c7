"""Finds stop strings in streamed text. In: text, cut anywhere. Out: the text up to the first stop string.

Holds back only text that may still become a stop string. Linear in the text, whatever it is. Knows nothing of tokens.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter

_depth = attrgetter("depth")


class StopMatcher:
    """Searches one answer. The match that ends first wins; of matches that end together, the string listed first.

    While nothing is `held`, text without any of `starts` passes unchanged and need not be fed. With `keeps_match` the
    string that matched is part of the answer.
    """

    __slots__ = ("_holder", "_keeps_match", "_searches", "held", "matched", "starts")

    def __init__(self, stop: Sequence[str], *, keeps_match: bool = False) -> None:
        """`stop`: any number of strings, none of them empty."""
        self._keeps_match = keeps_match
        self._searches = [_Search(string) for string in stop]
        self._holder = self._searches[0] if stop else _Search("")
        self.starts = frozenset(string[0] for string in stop)
        self.held = 0
        """How many characters at the end of the text may still become a stop string."""
        self.matched: str | None = None

    def feed(self, text: str, *, may_match: bool = True) -> str:
        """Returns the text that certainly belongs to the answer; "" after a match.

        Unless `may_match`, stop strings that end in `text` are part of the answer.
        """
        if self.matched is not None:
            return ""
        prefix, held = self._holder.string, self.held
        if not held and self.starts.isdisjoint(text):
            return text
        # The text held back is a prefix of its holder's string, so keeping its length is enough.
        ends = [search.advance(text, may_match) for search in self._searches]
        end = min(ends)
        if end <= len(text):
            self.matched = self._searches[ends.index(end)].string
            certain = held + end - (0 if self._keeps_match else len(self.matched))
        else:
            self._holder = max(self._searches, key=_depth)
            self.held = self._holder.depth
            certain = held + len(text) - self.held
        return prefix[:certain] if certain <= held else prefix[:held] + text[: certain - held]

    def flush(self) -> str:
        """Returns the text held back, when the text is over; "" after a match."""
        text = "" if self.matched is not None else self._holder.string[: self.held]
        self.held = 0
        for search in self._searches:
            search.depth = 0
        return text


class _Search:
    """Knuth, Morris and Pratt's search for one string in text that arrives in pieces.

    `depth`: with how many characters of the string the text now ends; always fewer than all of them.
    """

    __slots__ = ("_borders", "depth", "string")

    def __init__(self, string: str) -> None:
        self.string = string
        self.depth = 0
        self._borders = _borders(string)

    def advance(self, text: str, may_match: bool) -> int:
        """Returns where in `text` the first match ends; more than the length of `text` when there is none."""
        start = 0 if self.depth else text.find(self.string[0])
        if start < 0:
            return len(text) + 1
        string, borders, depth = self.string, self._borders, self.depth
        for index in range(start, len(text)):
            depth = _step(string, borders, depth, text[index])
            if depth == len(string):
                if may_match:
                    return index + 1
                depth = borders[depth]
        self.depth = depth
        return len(text) + 1


# The choices of a request, up to 128, are set up one after the other, each with the same four strings at most. Without
# this cache strings of 4,096 characters took a second. It keeps no more than the strings of one request.
@lru_cache(maxsize=4)
def _borders(string: str) -> Sequence[int]:
    """Returns, for each prefix by its length, the length of its longest proper prefix that is also its suffix."""
    borders = [0, 0]
    for length in range(1, len(string)):
        borders.append(_step(string, borders, borders[length], string[length]))
    return borders


def _step(string: str, borders: Sequence[int], depth: int, character: str) -> int:
    """Returns the depth after one more character, from a `depth` short of the whole string."""
    while depth and string[depth] != character:
        depth = borders[depth]
    return depth + (string[depth] == character)
