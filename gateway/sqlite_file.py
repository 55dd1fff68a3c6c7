"""An SQLite file of the state folder, which its owner alone reads. One that is no base of ours is set aside.

In: a path, a schema, and a query that such a base answers. Out: a connection. Knows nothing of what is in it.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from gateway.state_folder import PRIVATE, check_file, locked, set_aside

DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")  # the last: tables of another form
SIDE_FILES = ("-wal", "-shm")  # SQLite's own, of what is not yet in the file
BUSY_S = 0.1  # while another worker writes


def open_base(place: str, schema: str, query: str, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Raises sqlite3.Error."""
    base = sqlite3.connect(place, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        base.executescript(schema)
        base.execute(query).fetchone()
    except sqlite3.Error:
        base.close()
        raise
    return base


def open_file(path: Path, schema: str, query: str, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Raises OSError, and sqlite3.Error on a full disk. The folder is locked only to create or set aside."""
    with suppress(sqlite3.DatabaseError, ValueError):
        if check_file(path):
            return open_base(str(path), schema, query, busy_s)
    with locked(path.parent):  # of several workers one sets it aside, and the others find the new one
        try:
            if not check_file(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))  # as which SQLite makes its other files
            return open_base(str(path), schema, query, busy_s)
        except (sqlite3.DatabaseError, ValueError) as exc:
            if isinstance(exc, sqlite3.Error) and not exc.sqlite_errorname.startswith(DAMAGED):
                raise
            for file in (path, *(path.with_name(path.name + end) for end in SIDE_FILES)):
                if os.path.lexists(file):
                    set_aside(file, exc)
            return open_base(str(path), schema, query, busy_s)
