"""The files of the state folder: read, written all or nothing, and set aside where they cannot be read; whose it is.

In: paths and bytes. Out: bytes, or JSON objects. Knows nothing of what is in them.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

logger = logging.getLogger(__name__)

PRIVATE, PRIVATE_FOLDER = 0o600, 0o700  # keys' names, policies, and answers that clients have kept
MOST_BYTES = 64 * 1024 * 1024  # of a file that is read whole
MOST_ASIDE = 100  # files of one name
OWNER = "gateway.lock"  # locked by the gateway that keeps its state here, whose words are in it


class FolderTaken(Exception):
    """Another gateway keeps its state in the folder. `words`: what it has written into its lock file."""

    def __init__(self, words: bytes) -> None:
        super().__init__(words)
        self.words = words


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


def claim(folder: Path) -> int | None:
    """Makes the folder this gateway's and returns the descriptor of its lock file; the kernel frees it on our death.

    None where it cannot be written or locked. Raises FolderTaken.
    """
    descriptor = None
    try:
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, PRIVATE)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(descriptor, 0)  # what is there names a process that has ended
    except OSError as exc:
        words = b"" if descriptor is None else os.pread(descriptor, 4096, 0)
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(exc, BlockingIOError):
            raise FolderTaken(words) from exc
        logger.warning("%s cannot be locked: another gateway may keep its state there too: %s", folder, exc)
        return None
    return descriptor


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Makes the folder where there is none, and yields its descriptor, which one process has at a time."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file, all or nothing, that the folder's owner alone may read. Call it with the folder locked."""
    partial = path.with_suffix(".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "wb") as file:  # noqa: PTH123 - of a descriptor
        os.fchmod(file.fileno(), PRIVATE)
        if os.geteuid() == 0:  # an operator's command: the gateway has to read it
            owner = path.parent.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_object(path: Path | None) -> Mapping[str, Any]:  # Any: JSON, our own
    """Reads a file with a JSON object; empty if there is none. Raises OSError, and ValueError for any other content."""
    data = None if path is None else read_whole(path)
    content = {} if data is None else orjson.loads(data)
    if not isinstance(content, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - a file of bad content
    return content


def read_anew(path: Path | None) -> Mapping[str, Any]:  # Any: as above
    """Reads it likewise; empty if it is damaged: that was reported at the start, and is replaced by what comes now."""
    try:
        return read_object(path)
    except ValueError:
        return {}
