"""What keys with limits use, counted over all workers and restarts in a file of the state folder that each one maps.

In: a caller, and what its request may take. Out: a claim, held until the answer has ended, or the error that names the
limit. A process has a column of its own for what it has under way, and a lock on it, which the kernel frees when the
process dies: who then gets the lock gives back what is in the column.
"""

import fcntl
import logging
import os
import struct
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from gateway.access.key import Caller
from gateway.access.limits import MOST, Ask, Limits, Use, check, describe
from gateway.header import Lines, make_line
from gateway.shared import WORD, Ints, Memory, NodeLock
from gateway.state_folder import PRIVATE, locked

logger = logging.getLogger(__name__)

FILE = "key-use.2"  # a later layout gets another number
ROWS = 1024  # keys that are counted; the one unused for longest gives way to another
COLUMNS = 128  # processes: the most workers of two generations
MINUTE, DAY = 60_000, 86_400_000  # milliseconds
RECENT = 16  # answers
UNKNOWN = 256  # tokens of an answer whose client sets no limit: a few short ones must not let in hundreds of long ones
MOST_MINUTES = 10  # of its limit that one answer may count for: a false usage must not lock a key for days

# Of a row: whose it is, when it was read last, a bucket of requests and one of tokens, both times MINUTE, the mean
# answer times RECENT, a day and its tokens, and the limits by which the buckets drain, 0 for none. Of a column, for
# each row: choices and tokens under way.
TAG, AT, REQUESTS, TOKENS, MEAN, TODAY, SPENT, REQUEST_LIMIT, TOKEN_LIMIT, ROW = range(10)
BUCKETS = ((REQUESTS, REQUEST_LIMIT), (TOKENS, TOKEN_LIMIT))
COLUMN = 2 * ROWS

SIZE = WORD * (ROWS * ROW + COLUMNS * COLUMN)
EMPTY = bytes(WORD * COLUMN)
NOTHING = memoryview(EMPTY).cast("q")


class _Row:
    """The words of one key: those that all processes change, with the lock, and two that each has of its own."""

    def __init__(self, table: Ints, cells: Ints, place: int) -> None:
        self.words = table[place * ROW : (place + 1) * ROW]
        self.in_flight, self.reserved = cells[2 * place :: COLUMN], cells[2 * place + 1 :: COLUMN]

    def drain(self) -> None:
        """Brings the words up to now: buckets drain evenly, by their limit in a minute. A clock may go back."""
        words, now = self.words, time.time_ns() // 10**6
        elapsed, words[AT] = max(now - words[AT], 0), now
        for bucket, limit in BUCKETS:
            words[bucket] = max(words[bucket] - elapsed * words[limit], 0)
        if words[TODAY] != now // DAY:
            words[TODAY], words[SPENT] = now // DAY, 0

    def go_by(self, limits: Limits) -> None:
        """Brings the words up to now. A bucket whose limit has changed holds a minute of the new one at most."""
        self.drain()
        words = self.words
        for (bucket, limit), most in zip(BUCKETS, (limits.requests_per_minute, limits.tokens_per_minute), strict=True):
            if words[limit] != (most or 0):
                words[limit] = most or 0
                words[bucket] = min(words[bucket], words[limit] * MINUTE)

    def read(self) -> Use:
        """Returns what is in use, as of when the words were brought up."""
        words, reserved, in_flight = self.words, max(sum(self.reserved), 0), max(sum(self.in_flight), 0)
        requests, tokens = -(-words[REQUESTS] // MINUTE), -(-words[TOKENS] // MINUTE)
        return Use(requests, tokens + reserved, in_flight, words[SPENT] + reserved, reserved)

    def estimate(self, limits: Limits, ask: Ask) -> int:
        """Returns the tokens to reserve. Where the client sets no limit, no request is too large for a key's."""
        if ask.answer_tokens is not None:
            return ask.prompt_tokens + ask.sequences * ask.answer_tokens
        most = min(limits.tokens_per_minute or MOST, limits.tokens_per_day or MOST)
        each = max(self.words[MEAN] // RECENT, min(UNKNOWN, most // 4))
        return max(ask.prompt_tokens, min(ask.prompt_tokens + ask.sequences * each, most))


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request has reserved. `lines`: header fields of its answer."""

    row: _Row
    sequences: int
    tokens: int
    lines: Lines


class Meter:
    """`column`: of this process."""

    def __init__(self, memory: Memory, column: int = 0) -> None:
        self._memory = memory
        self._lock = NodeLock(memory.fd)
        self._column = column
        self._table, self._cells = memory.ints(ROWS * ROW), memory.ints(COLUMNS * COLUMN)
        self._bytes = self._cells.cast("B")
        self._rows: dict[str, _Row] = {}  # where keys were found last

    @classmethod
    def open(cls, folder: Path | None) -> Self:
        """Opens the file. Where that cannot be, each process counts alone, and until its end."""
        if folder is not None:
            try:
                return cls._join(_open_file(folder))
            except OSError as exc:
                logger.warning("%s cannot be used: each worker counts keys' limits by itself: %s", folder / FILE, exc)
        return cls(Memory())

    @classmethod
    def _join(cls, fd: int) -> Self:
        """Raises OSError."""
        for column in range(COLUMNS):
            if _lock(fd, column, fcntl.F_WRLCK):
                meter = cls(Memory.attach(fd, SIZE), column)
                meter._clear(column)
                meter.sweep()
                return meter
        raise OSError(f"{COLUMNS} processes have it open")

    def claim(self, caller: Caller, ask: Ask) -> Claim:
        """Reserves what a request may take. Raises RateLimited and BudgetSpent, and then has reserved nothing."""
        limits = caller.limits or Limits()
        with self._lock:
            row = self._find(caller.name) or self._make(caller.name)
            row.go_by(limits)
            tokens = row.estimate(limits, ask)
            check(caller.name, limits, row.read(), Use(1, tokens, ask.sequences, tokens))
            row.words[REQUESTS] += MINUTE if limits.requests_per_minute else 0
            row.in_flight[self._column] += ask.sequences
            row.reserved[self._column] += tokens
            lines = tuple(map(make_line, describe(limits, row.read())))
        return Claim(row, ask.sequences, tokens, lines)

    def settle(self, claim: Claim, used: tuple[int, int]) -> None:
        """Ends a claim, and counts the tokens used, the prompt's and the answer's, in place of those reserved."""
        row = claim.row
        with self._lock:
            for cells, amount in ((row.in_flight, claim.sequences), (row.reserved, claim.tokens)):
                cells[self._column] = max(cells[self._column] - amount, 0)  # the file may have been cut off meanwhile
            row.drain()
            row.words[SPENT] += sum(used)
            row.words[TOKENS] += min(sum(used), MOST_MINUTES * row.words[TOKEN_LIMIT]) * MINUTE
            if tokens := used[1] // claim.sequences:
                mean = row.words[MEAN]
                row.words[MEAN] = mean + tokens - mean // RECENT if mean else tokens * RECENT

    def read(self, name: str, limits: Limits) -> Use:
        """Returns what a key has in use."""
        with self._lock:
            if (row := self._find(name)) is None:
                return Use(0, 0, 0, 0)
            row.go_by(limits)
            return row.read()

    def sweep(self) -> None:
        """Gives back what processes that are gone had under way. Mends a file that was cut off. Raises OSError."""
        if (fd := self._memory.fd) is None:
            return
        if os.fstat(fd).st_size < SIZE:
            logger.warning("%s was cut off: what keys had used is forgotten", FILE)
            os.posix_fallocate(fd, 0, SIZE)
        for column, start in enumerate(range(0, len(self._bytes), len(EMPTY))):
            has_any = self._bytes[start : start + len(EMPTY)].tobytes() != EMPTY
            if has_any and column != self._column and _lock(fd, column, fcntl.F_WRLCK):
                self._clear(column)
                _lock(fd, column, fcntl.F_UNLCK)

    def _clear(self, column: int) -> None:
        with self._lock:
            self._cells[column * COLUMN : (column + 1) * COLUMN] = NOTHING

    def _find(self, name: str) -> _Row | None:
        tag = _tag(name)
        if (row := self._rows.get(name)) is not None and row.words[TAG] == tag:
            return row
        place = next((place for place, other in enumerate(self._table[TAG::ROW]) if other == tag), None)
        return None if place is None else self._note(name, place)

    def _make(self, name: str) -> _Row:
        places = sorted(range(ROWS), key=self._table[AT::ROW].__getitem__)
        row = self._note(name, next(each for each in places if not any(self._cells[2 * each :: COLUMN])))
        row.words[:] = NOTHING[:ROW]
        row.words[TAG] = _tag(name)
        return row

    def _note(self, name: str, place: int) -> _Row:
        if len(self._rows) >= ROWS:  # most have given way
            self._rows.clear()
        row = self._rows[name] = _Row(self._table, self._cells, place)
        return row


def _tag(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:8], signed=True) or 1


def _lock(fd: int, column: int, kind: int) -> bool:
    """Locks a column, or unlocks it. Returns whether no other process has it. The lock belongs to the open file."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", kind, os.SEEK_SET, column, 1, 0))
    except (BlockingIOError, PermissionError):  # POSIX lets a system choose between the two
        return False
    return True


def _open_file(folder: Path) -> int:
    """Raises OSError."""
    with locked(folder):
        fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, PRIVATE)
        os.posix_fallocate(fd, 0, SIZE)  # or a write into a hole would end the process on a full disk
        os.truncate(fd, SIZE)
    return fd
