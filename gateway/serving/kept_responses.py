"""Responses that are kept for later requests: SQLite, in memory or in a file that all workers share.

In: a finished response with its conversation. Out: what GET, DELETE and `previous_response_id` find. A write takes some
hundred microseconds of the event loop: the file's log is not forced to the disk for each.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs

import orjson

from gateway.errors import InternalError, InvalidRequest, PathNotFound, ResponseNotFound
from gateway.openai.response_items import JsonItem
from gateway.settings import ResponseSettings
from gateway.sqlite_file import open_base, open_file
from gateway.wire.keeper import Kept

logger = logging.getLogger(__name__)
FILE = "responses.sqlite"
MAX_PAGE, PAGE = 100, 20
SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, at REAL NOT NULL, size INTEGER NOT NULL, response BLOB NOT NULL, items BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS responses_at ON responses (at);
"""


class KeptResponses:
    """A wire.Keeper. `folder`: of the file; None: in memory. `clock`: returns Unix seconds."""

    def __init__(self, settings: ResponseSettings, folder: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()  # long requests are read on threads
        form = (SCHEMA, "SELECT count(*), max(at) FROM responses")
        self._base = open_base(":memory:", *form) if folder is None else open_file(folder / FILE, *form)

    def keep(self, response_id: str, kept: Kept) -> None:
        """Keeps a response, and forgets those that are too old or too many. A failure is logged: it is answered."""
        row = (response_id, self._clock(), len(kept.response) + len(kept.items), kept.response, kept.items)
        try:
            with self._lock, self._base:
                self._base.execute("BEGIN IMMEDIATE")
                self._base.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row)
                self._forget()
        except sqlite3.Error as exc:
            logger.warning("response %s was not kept: %s", response_id, exc)

    def find(self, response_id: str) -> Kept:
        """Raises ResponseNotFound, and InternalError where the file cannot be used."""
        since = self._clock() - self._settings.max_age_s
        with self._using():
            row = self._base.execute(
                "SELECT response, items FROM responses WHERE id = ? AND at >= ?", (response_id, since)
            ).fetchone()
        if row is None:
            raise not_found(response_id)
        return Kept(bytes(row[0]), bytes(row[1]))

    def drop(self, response_id: str) -> None:
        """Raises as `find` does."""
        with self._using(), self._base:
            found = self._base.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount
        if not found:
            raise not_found(response_id)

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Raises InternalError on a full disk, say, or while another worker writes for too long."""
        try:
            with self._lock:
                yield
        except sqlite3.Error as exc:
            logger.warning("kept responses cannot be used: %s", exc)
            raise InternalError from exc

    def _forget(self) -> None:
        limits = self._settings
        self._base.execute("DELETE FROM responses WHERE at < ?", (self._clock() - limits.max_age_s,))
        count, size = self._base.execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
        while count > limits.max_responses or (size > limits.max_bytes and count > 1):
            oldest, its_size = self._base.execute("SELECT id, size FROM responses ORDER BY at LIMIT 1").fetchone()
            self._base.execute("DELETE FROM responses WHERE id = ?", (oldest,))
            count, size = count - 1, size - its_size


def not_found(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(f"Response with id '{response_id[:100]}' not found.")


def answer_about(kept: KeptResponses, method: str, path: str, query: str) -> bytes:
    """Answers GET and DELETE of /v1/responses/{id}, GET of its input_items, and POST of its cancel.

    Raises ResponseNotFound, InternalError, PathNotFound, and InvalidRequest for a wrong query.
    """
    response_id, _, part = path.partition("/")
    if (method, part) == ("POST", "cancel"):
        kept.find(response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.")  # and there are no others
    if (method, part) not in {("GET", ""), ("GET", "input_items"), ("DELETE", "")}:
        raise PathNotFound(f"Unknown request URL: {method} /v1/responses/{path[:200]}.")
    if method == "DELETE":
        kept.drop(response_id)
        return orjson.dumps({"id": response_id, "object": "response", "deleted": True})
    found = kept.find(response_id)
    return _list_items(orjson.loads(found.items), query) if part == "input_items" else found.response


def _list_items(items: Sequence[JsonItem], query: str) -> bytes:
    """Returns a page of the conversation before a response. Raises InvalidRequest. By default the newest come first."""
    asked = {name: values[-1] for name, values in parse_qs(query).items()}
    limit = asked.get("limit", str(PAGE))
    if not limit.isdigit() or not 1 <= int(limit) <= MAX_PAGE:
        raise InvalidRequest(f"'limit' must be an integer from 1 to {MAX_PAGE}.", param="limit")
    order = asked.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise InvalidRequest("'order' must be 'asc' or 'desc'.", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if (after := asked.get("after")) is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise InvalidRequest("'after' is not the id of any of these items.", param="after")
        ordered = ordered[places[0] + 1 :]
    page = ordered[: int(limit)]
    ids = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return orjson.dumps({"object": "list", "data": page, **ids, "has_more": len(ordered) > len(page)})
