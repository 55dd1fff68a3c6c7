"""The lock of a node: one process at a time between `with` and its end. The kernel frees it when the holder dies."""

import ctypes
import fcntl
import os


class NodeLock:
    """The lock between processes, not between threads: within a process only the event loop's thread may use it.

    A file lock, because a lock in memory would stay taken when its holder is killed. Both calls together cost about a
    microsecond; while another process holds it, this one sleeps.
    """

    __slots__ = ("_fd", "_flock")

    def __init__(self, fd: int | None) -> None:
        """Opens a file of which each process has a descriptor. None: there is no other process, and nothing to lock."""
        # Opened anew, as Linux does with this path: the lock belongs to the open file, and a descriptor that was passed
        # on shares the parent's.
        self._fd = None if fd is None else os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        # fcntl.flock releases the interpreter: beside a thread that computes, to get it back takes 5 ms, during which
        # a lock just taken would keep every other worker waiting.
        self._flock = ctypes.PyDLL(None).flock

    def __enter__(self) -> None:
        if self._fd is not None and self._flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # another has it

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            self._flock(self._fd, fcntl.LOCK_UN)
