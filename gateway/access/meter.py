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
from gateway.access.limits import Ask, Limits, Use, check, describe
from gateway.header import Lines, make_line
from gateway.shared import WORD, Memory, NodeLock, Plan
from gateway.state_folder import PRIVATE, locked

logger = logging.getLogger(__name__)

FILE = "key-use.1"  # a later layout gets another number
ROWS = 1024  # keys that are counted; the one unused for longest gives way to another
COLUMNS = 128  # processes: the most workers of two generations
MINUTE, DAY = 60_000, 86_400_000  # milliseconds
RECENT = 16  # answers

# Of a row: whose it is, when it was read last, a bucket of requests and one of tokens, both times MINUTE, the mean
# answer times RECENT, a day and its tokens. Of a column, for each row: choices and tokens under way.
TAG, AT, REQUESTS, TOKENS, MEAN, TODAY, SPENT, ROW = range(8)
COLUMN = 2 * ROWS

_plan = Plan()
TAKEN, TABLE, CELLS = _plan.words(COLUMNS), _plan.words(ROWS * ROW), _plan.words(COLUMNS * COLUMN)
SIZE = _plan.size
NOTHING = memoryview(bytes(WORD * COLUMN)).cast("q")


class _Row:
    """The words of one key: those that all processes change, with the lock, and two that each has of its own."""

    def __init__(self, memory: Memory, place: int) -> None:
        cells = memory.ints(CELLS)
        self.words = memory.ints(TABLE)[place * ROW : (place + 1) * ROW]
        self.in_flight, self.reserved = cells[2 * place :: COLUMN], cells[2 * place + 1 :: COLUMN]

    def read(self, limits: Limits) -> Use:
        """Brings the words up to now: buckets drain evenly, by their limit in a minute. A clock may go back."""
        words, reserved, now = self.words, sum(self.reserved), time.time_ns() // 10**6
        elapsed, words[AT] = max(now - words[AT], 0), now
        for bucket, most in ((REQUESTS, limits.requests_per_minute), (TOKENS, limits.tokens_per_minute)):
            words[bucket] = max(words[bucket] - elapsed * most, 0) if most else 0
        if words[TODAY] != now // DAY:
            words[TODAY], words[SPENT] = now // DAY, 0
        requests, tokens = -(-words[REQUESTS] // MINUTE), -(-words[TOKENS] // MINUTE)
        return Use(requests, tokens + reserved, sum(self.in_flight), words[SPENT] + reserved, reserved)

    def estimate(self, limits: Limits, ask: Ask) -> int:
        """Returns the tokens to reserve. By the mean of recent answers no request is too large for a limit."""
        if ask.answer_tokens is not None:
            return ask.prompt_tokens + ask.sequences * ask.answer_tokens
        usual = ask.prompt_tokens + ask.sequences * (self.words[MEAN] // RECENT)
        most = min(limits.tokens_per_minute or usual, limits.tokens_per_day or usual)
        return max(ask.prompt_tokens, min(usual, most))

    def note_answer(self, tokens: int) -> None:
        mean = self.words[MEAN]
        self.words[MEAN] = mean + tokens - mean // RECENT if mean else tokens * RECENT


@dataclass(frozen=True, slots=True)
class Claim:
    """What one request has reserved. `lines`: header fields of its answer."""

    row: _Row
    limits: Limits
    sequences: int
    tokens: int
    lines: Lines


class Meter:
    """`column`: of this process."""

    def __init__(self, memory: Memory, column: int = 0) -> None:
        self._memory = memory
        self._lock = NodeLock(memory.fd)
        self._column = column
        self._taken, self._cells = memory.ints(TAKEN), memory.ints(CELLS)
        self._table = memory.ints(TABLE)
        self._rows: dict[str, _Row] = {}  # where keys were found last

    @classmethod
    def open(cls, folder: Path | None) -> Self:
        """Opens the file. Where that cannot be, each process counts alone, and until its end."""
        if folder is not None:
            try:
                return cls._join(_open_file(folder))
            except OSError as exc:
                logger.warning("%s cannot be used: each worker counts keys' limits by itself: %s", folder / FILE, exc)
        return cls(Memory.private(SIZE))

    @classmethod
    def _join(cls, fd: int) -> Self:
        """Raises OSError."""
        for column in range(COLUMNS):
            if _lock(fd, column, fcntl.F_WRLCK):
                meter = cls(Memory.attach(fd, SIZE), column)
                meter._clear(column, is_taken=True)
                meter.sweep()
                return meter
        raise OSError(f"{COLUMNS} processes have it open")

    def claim(self, caller: Caller, ask: Ask) -> Claim:
        """Reserves what a request may take. Raises RateLimited and BudgetSpent, and then has reserved nothing."""
        limits = caller.limits or Limits()
        with self._lock:
            row = self._find(caller.name) or self._make(caller.name)
            tokens = row.estimate(limits, ask)
            check(caller.name, limits, row.read(limits), Use(1, tokens, ask.sequences, tokens))
            row.words[REQUESTS] += MINUTE
            row.in_flight[self._column] += ask.sequences
            row.reserved[self._column] += tokens
            lines = tuple(map(make_line, describe(limits, row.read(limits))))
        return Claim(row, limits, ask.sequences, tokens, lines)

    def settle(self, claim: Claim, used: tuple[int, int]) -> None:
        """Ends a claim, and counts the tokens used, the prompt's and the answer's, in place of those reserved."""
        row = claim.row
        with self._lock:
            row.in_flight[self._column] -= claim.sequences
            row.reserved[self._column] -= claim.tokens
            row.read(claim.limits)
            row.words[SPENT] += sum(used)
            row.words[TOKENS] += sum(used) * MINUTE
            if used[1]:
                row.note_answer(used[1] // claim.sequences)

    def read(self, name: str, limits: Limits) -> Use:
        """Returns what a key has in use."""
        with self._lock:
            row = self._find(name)
            return Use(0, 0, 0, 0) if row is None else row.read(limits)

    def sweep(self) -> None:
        """Gives back what processes that are gone had under way."""
        if (fd := self._memory.fd) is not None:
            for column, is_taken in enumerate(self._taken):
                if is_taken and column != self._column and _lock(fd, column, fcntl.F_WRLCK):
                    self._clear(column, is_taken=False)
                    _lock(fd, column, fcntl.F_UNLCK)

    def _clear(self, column: int, *, is_taken: bool) -> None:
        with self._lock:
            self._cells[column * COLUMN : (column + 1) * COLUMN] = NOTHING
            self._taken[column] = is_taken

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
        row = self._rows[name] = _Row(self._memory, place)
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
        if os.fstat(fd).st_size != SIZE:
            os.posix_fallocate(fd, 0, SIZE)  # or a write into the map would end the process on a full disk
            os.truncate(fd, SIZE)
    return fd
