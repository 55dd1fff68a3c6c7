"""How much each key has used, by day in UTC: SQLite in the state folder, to which every worker adds once a second.

In: the tokens of answers that have ended. Out: rows. Knows no limits.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from gateway.sqlite_file import open_file

logger = logging.getLogger(__name__)

FILE = "usage.sqlite"
KEPT_DAYS = 400
BUSY_S = 5.0  # while other workers write
SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, key TEXT NOT NULL, requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, PRIMARY KEY (day, key)
) WITHOUT ROWID;
"""
ADD = """
INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
prompt_tokens = prompt_tokens + excluded.prompt_tokens,
completion_tokens = completion_tokens + excluded.completion_tokens
"""
FIND = "SELECT day, key, requests, prompt_tokens, completion_tokens FROM usage WHERE day BETWEEN ? AND ? ORDER BY 1, 2"
CHECK = "SELECT completion_tokens FROM usage LIMIT 1"


class DayUse(NamedTuple):
    """What a key has used in a day."""

    day: str
    key: str
    requests: int
    prompt_tokens: int
    completion_tokens: int


class UsageLog:
    """`folder` None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE if folder else None
        self._unwritten: dict[str, list[int]] = {}  # by key
        self._failed = ""

    def count(self, key: str, used: tuple[int, int], requests: int = 1) -> None:
        """Counts requests with their tokens, the prompts' and the answers'."""
        counts = self._unwritten.setdefault(key, [0, 0, 0])
        counts[0] += requests
        counts[1] += used[0]
        counts[2] += used[1]

    async def write(self) -> None:
        """Writes what has been counted since it was called last. What cannot be written is kept for the next time."""
        if self._path is None or not self._unwritten:
            return
        counts, self._unwritten = self._unwritten, {}
        try:
            await asyncio.to_thread(_write, self._path, counts)
            self._failed = ""
        except Exception as exc:  # noqa: BLE001 - whatever it is, what was counted stays
            if self._failed != str(exc):
                self._failed = str(exc)
                logger.warning("%s cannot be written: %s", self._path, exc)
            for key, (requests, prompt, answer) in counts.items():
                self.count(key, (prompt, answer), requests)

    def read(self, since: date, until: date) -> Iterator[DayUse]:
        """Yields what was used by day and key, both days included. Raises sqlite3.Error."""
        if self._path is not None and self._path.exists():
            with closing(sqlite3.connect(self._path, timeout=BUSY_S)) as base:
                yield from map(DayUse._make, base.execute(FIND, (since.isoformat(), until.isoformat())))


def _write(path: Path, counts: dict[str, list[int]]) -> None:
    today = datetime.now(UTC).date()
    with closing(open_file(path, SCHEMA, CHECK, BUSY_S)) as base, base:
        base.execute("BEGIN IMMEDIATE")
        base.executemany(ADD, [(today.isoformat(), key, *each) for key, each in counts.items()])
        base.execute("DELETE FROM usage WHERE day < ?", ((today - timedelta(days=KEPT_DAYS)).isoformat(),))
