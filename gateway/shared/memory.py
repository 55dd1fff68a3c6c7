"""The map itself. In: a size, or the descriptor of a map that exists. Out: views of its spans.

Words are aligned, so each is read and written in one machine instruction: no process reads half a number, and a process
that is killed leaves none.
"""

import mmap
import os
from typing import Self, TypeAlias

from gateway.shared.plan import Span

# Quoted: memoryview takes no parameter at run time before Python 3.14.
Ints: TypeAlias = "memoryview[int]"
Floats: TypeAlias = "memoryview[float]"


class Memory:
    """A map, of zeros at first. Other processes attach to `fd`, which is None if there are none."""

    def __init__(self, buffer: mmap.mmap, fd: int | None) -> None:
        self.fd = fd
        self._view = memoryview(buffer)

    @classmethod
    def private(cls, size: int) -> Self:
        """Returns a map for one process alone."""
        return cls(mmap.mmap(-1, max(size, 1)), None)

    @classmethod
    def create(cls, size: int) -> Self:
        """Returns a map for processes that get `fd`. It has no name and is gone with the last of them. Linux only."""
        fd = os.memfd_create("crossover")
        os.truncate(fd, max(size, 1))
        return cls.attach(fd, size)

    @classmethod
    def attach(cls, fd: int, size: int) -> Self:
        return cls(mmap.mmap(fd, max(size, 1)), fd)

    def ints(self, span: Span) -> Ints:
        return self.raw(span).cast("q")

    def floats(self, span: Span) -> Floats:
        return self.raw(span).cast("d")

    def raw(self, span: Span) -> Ints:
        return self._view[span.offset : span.offset + span.size]
