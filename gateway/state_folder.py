"""The files of the state folder: read, written all or nothing, and set aside where they cannot be read.

In: paths and bytes. Out: bytes. Knows nothing of what is in them.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024  # of a file that is read whole
MOST_ASIDE = 100  # files of one name


def check_file(path: Path) -> bool:
    """Returns whether there is a file. Raises OSError, and ValueError for a pipe, a folder or the like."""
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    if not is_file:
        raise ValueError("is no regular file")
    return True


def read_whole(path: Path) -> bytes | None:
    """Returns its content; None where there is no file. Raises OSError; ValueError for what is no file, or too long."""
    if not check_file(path):
        return None
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"is longer than {MOST_BYTES} bytes")
    return path.read_bytes()


def set_aside(path: Path, why: Exception) -> bool:
    """Gives a file another name, because it cannot be read. What it holds stays, and a new one can be written.

    Returns whether it could.
    """
    for number in range(1, MOST_ASIDE + 1):
        aside = path.with_name(f"{path.name}.unreadable-{number}")
        if not os.path.lexists(aside):
            try:
                path.rename(aside)
            except OSError as exc:
                logger.warning("%s cannot be read (%s), nor set aside: %s", path, why, exc)
                return False
            logger.warning("%s cannot be read, and is %s now: %s", path, aside.name, why)
            return True
    logger.warning("%s cannot be read (%s), nor set aside: there are %d of them", path, why, MOST_ASIDE)
    return False


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Makes the folder where there is none, and yields its descriptor, which one process has at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file, all or nothing. Call it with the folder locked."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
