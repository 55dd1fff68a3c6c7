"""keys.json in the state folder: the keys of a gateway, written all or nothing by one process at a time.

In: names and scopes. Out: keys, and a new one's secret. A file that cannot be read is an error and never set aside:
a gateway that went on without it would be open to everyone.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, with_config

from gateway.access.key import NAME_FORM, OPERATOR_KEY, Key, Scope
from gateway.access.limits import Limits
from gateway.state_folder import locked, read_whole, write_whole

NAME = "keys.json"
SCHEMA: Literal["crossover.keys/1"] = "crossover.keys/1"

Stamp: TypeAlias = tuple[int, int, int]


class KeyFileUnreadable(Exception):
    """The keys cannot be read, so nobody can be let in."""


class KeyRefused(Exception):
    """A change that cannot be made; the file is as it was."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Content:
    """The whole file."""

    schema: Literal["crossover.keys/1"]
    keys: Annotated[tuple[Key, ...], Field(min_length=1)]  # no key is ever removed: a file without any is damaged


CONTENT = TypeAdapter(Content)


class KeyFile:
    """The keys in `folder`, which is made with the first one; None: there are no keys."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / NAME if folder else None

    def __str__(self) -> str:
        return str(self._path)

    def stamp(self) -> Stamp | None:
        """Returns what differs after each change; None where there is no file. Raises KeyFileUnreadable."""
        try:
            status = None if self._path is None else self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise self._unreadable(exc) from exc
        return status and (status.st_ino, status.st_mtime_ns, status.st_size)

    def read(self) -> tuple[Key, ...]:
        """Returns every key there ever was; none where there is no file. Raises KeyFileUnreadable."""
        try:
            data = None if self._path is None else read_whole(self._path)
            return () if data is None else CONTENT.validate_json(data).keys
        except (OSError, ValueError) as exc:  # pydantic's errors are ValueErrors
            raise self._unreadable(exc) from exc

    def create(
        self, name: str, scopes: Sequence[Scope], lifetime: timedelta | None, limits: Limits | None = None
    ) -> str:
        """Adds a key and returns its secret. Raises KeyRefused for a name that has one, and KeyFileUnreadable."""
        if not re.fullmatch(NAME_FORM, name):  # or the file could not be read again
            raise KeyRefused("a name has 1 to 64 of A-Z a-z 0-9 . _ @ -, and begins with a letter or a digit")
        if name == OPERATOR_KEY:
            raise KeyRefused(f"{OPERATOR_KEY} is the name of the configuration's own key")
        now = datetime.now(UTC)
        key, secret = Key.make(name, tuple(scopes), now, None if lifetime is None else now + lifetime)
        with self._changing() as keys:
            if any(other.name == name and other.is_valid(now) for other in keys):
                raise KeyRefused(f"there is a key {name} already: rotate or revoke it")
            keys.append(replace(key, limits=limits))
        return secret

    def revoke(self, name: str) -> None:
        """Ends every key of that name, or the one of that id. Raises KeyRefused if none is valid, KeyFileUnreadable."""
        now = datetime.now(UTC)
        with self._changing() as keys:
            ids = {key.id for key in keys if name in {key.name, key.id} and key.is_valid(now)}
            if not ids:
                raise KeyRefused(f"no valid key has the name or the id {name}")
            keys[:] = [replace(key, revoked=now) if key.id in ids else key for key in keys]

    def rotate(self, name: str, overlap: timedelta, lifetime: timedelta | None) -> str:
        """Gives the name a new secret and returns it; the old one ends after `overlap`. Raises as `revoke` does.

        `lifetime` None: the new one expires when the old one would have.
        """
        now = datetime.now(UTC)
        with self._changing() as keys:
            old = _find_valid(keys, name, now)
            expires = old[-1].expires if lifetime is None else now + lifetime
            new, secret = Key.make(name, old[-1].scopes, now, expires)
            keys[:] = [_end_by(key, now + overlap) if key in old else key for key in keys]
            keys.append(replace(new, limits=old[-1].limits))
        return secret

    def limit(self, name: str, limits: Limits | None) -> None:
        """Gives the keys of that name these limits in place of those they had. Raises as `revoke` does."""
        with self._changing() as keys:
            valid = _find_valid(keys, name, datetime.now(UTC))
            keys[:] = [replace(key, limits=limits) if key in valid else key for key in keys]

    @contextmanager
    def _changing(self) -> Iterator[list[Key]]:
        """Yields the keys, and writes what has become of them; an error within leaves the file as it is.

        Raises KeyRefused, and KeyFileUnreadable for a file that can be neither read nor written.
        """
        if self._path is None:
            raise KeyRefused("without a state folder there are no keys")
        try:
            with locked(self._path.parent) as folder:
                keys = list(self.read())
                yield keys
                write_whole(self._path, CONTENT.dump_json(Content(SCHEMA, tuple(keys)), indent=2, exclude_none=True))
                os.fsync(folder)
        except OSError as exc:
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: Exception) -> KeyFileUnreadable:
        return KeyFileUnreadable(f"the keys in {self._path} cannot be used: {' '.join(str(exc).split())[:300]}")


def _find_valid(keys: Sequence[Key], name: str, now: datetime) -> list[Key]:
    """Raises KeyRefused where there is none."""
    if found := [key for key in keys if key.name == name and key.is_valid(now)]:
        return found
    raise KeyRefused(f"no valid key has the name {name}")


def _end_by(key: Key, end: datetime) -> Key:
    return key if key.expires is not None and key.expires < end else replace(key, expires=end)
