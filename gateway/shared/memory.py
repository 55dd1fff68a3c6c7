"""The map itself, and what lies where in it. In: a size, or the descriptor of a map that exists. Out: views.

Words are aligned, so each is read and written in one machine instruction: no process reads half a number, and a process
that is killed leaves none.
"""

import mmap
import os
from typing import Self, TypeAlias

WORD = 8  # bytes of an int64 and of a float64
CACHE_LINE = 64

# Quoted: memoryview takes no parameter at run time before Python 3.14.
Ints: TypeAlias = "memoryview[int]"
Floats: TypeAlias = "memoryview[float]"


class Memory:
    """A map, of zeros at first, that hands out one view after another; `size`: how many bytes so far.

    The same calls in the same order give the same places: every worker builds the same objects from the same Settings,
    and so finds what the others wrote. Other processes attach to `fd`; it is None if there are none, and then there is
    no map: each view has bytes of its own.
    """

    def __init__(self, buffer: mmap.mmap | None = None, fd: int | None = None) -> None:
        self.fd = fd
        self.size = 0
        self._view = None if buffer is None else memoryview(buffer)

    @classmethod
    def create(cls, size: int) -> Self:
        """Returns a map for processes that get `fd`. It has no name and is gone with the last of them. Linux only."""
        fd = os.memfd_create("crossover")
        os.truncate(fd, size)
        return cls.attach(fd, size)

    @classmethod
    def attach(cls, fd: int, size: int = 0) -> Self:
        """`size` 0: all of the map."""
        return cls(mmap.mmap(fd, size), fd)

    def ints(self, count: int) -> Ints:
        """Returns `count` words of 8 bytes.

        They begin a cache line, so that workers that write their own views do not invalidate each other's lines.
        """
        self.size += -self.size % CACHE_LINE
        return self.raw(count * WORD).cast("q")

    def floats(self, count: int) -> Floats:
        """Returns words likewise."""
        return as_floats(self.ints(count))

    def raw(self, size: int) -> Ints:
        """Returns `size` bytes."""
        start, self.size = self.size, self.size + size
        return memoryview(bytearray(size)) if self._view is None else self._view[start : self.size]


def as_floats(words: Ints) -> Floats:
    """Returns a second view of the same words."""
    return words.cast("B").cast("d")
