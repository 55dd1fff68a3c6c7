"""What lies where in a map that several processes share: the same calls in the same order give the same places.

Pure: every worker lays its plan from the same Settings and finds what the others wrote.
"""

from dataclasses import dataclass

WORD = 8  # bytes of an int64 and of a float64
CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Some bytes of the map."""

    offset: int
    size: int


class Plan:
    """Hands out spans, one after another; `size` is what the map must hold in the end."""

    def __init__(self) -> None:
        self.size = 0

    def words(self, count: int) -> Span:
        """Returns room for `count` words of 8 bytes, read as integers or as floats.

        It begins a cache line, so that workers that write their own spans do not invalidate each other's lines.
        """
        self.size += -self.size % CACHE_LINE
        return self.raw(count * WORD)

    def raw(self, size: int) -> Span:
        """Returns room for `size` bytes."""
        span = Span(self.size, size)
        self.size += size
        return span
