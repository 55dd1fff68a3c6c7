"""Whether a backend is sick, whatever its health page reports: by how its requests ended. Pure.

In: the end of each request, and of each trial of a backend that is out. Out: whether it may get requests. Times are
monotonic seconds.
"""

from collections import deque
from enum import Enum

WINDOW_S = 30.0  # requests that ended before count no more
REMEMBERED = 64  # requests
LEAST_FAULTS = 3
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 4.0  # before a trial: it doubles from one that fails to the next
TRIALS = 5  # requests in a row that have to go well before all may come
TRIAL_S = 0.1  # between two of them


class Stage(Enum):
    IN = "in"
    OUT = "out"  # ejected
    ON_TRIAL = "on trial"  # it has generated a token since, and gets a request from time to time


class Conduct:
    """One backend's, as this worker sees it."""

    def __init__(self) -> None:
        self.stage = Stage.IN
        self._ends: deque[tuple[float, bool]] = deque(maxlen=REMEMBERED)  # when, and whether it was a fault
        self._pause_s = FIRST_PAUSE_S
        self._next_at = 0.0
        self._taken = self._succeeded = 0  # on trial

    def __repr__(self) -> str:
        return f"<Conduct {self.stage.value} faults={sum(is_fault for _, is_fault in self._ends)}/{len(self._ends)}>"

    def succeed(self, now: float) -> None:
        self._ends.append((now, False))
        if self.stage is Stage.ON_TRIAL:  # answers may end that began before
            self._succeeded = min(self._succeeded + 1, self._taken)
            if self._succeeded >= TRIALS:
                self.forget()

    def fail(self, now: float) -> None:
        self._ends.append((now, True))
        if self.stage is Stage.ON_TRIAL:
            self.eject(now)

    def retract(self, now: float) -> None:
        """Takes back the last fault, and an ejection for such faults: the request failed elsewhere too, and may be the
        cause itself.
        """
        was_sick = self.is_sick(now)
        for place in reversed(range(len(self._ends))):
            if self._ends[place][1]:
                del self._ends[place]
                break
        if was_sick and not self.is_sick(now) and self.stage is Stage.OUT:
            self.stage = Stage.IN

    def is_sick(self, now: float) -> bool:
        """Whether most of its recent requests failed, and enough to conclude from."""
        recent = [is_fault for at, is_fault in self._ends if at > now - WINDOW_S]
        return sum(recent) >= LEAST_FAULTS and 2 * sum(recent) > len(recent)

    def eject(self, now: float) -> None:
        """Ejects it, or again after a trial that failed."""
        if self.stage is not Stage.IN:
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
        self.stage = Stage.OUT
        self._next_at = now + self._pause_s

    def wants_token(self, now: float) -> bool:
        """Whether it is time to have it generate a token, as the first trial."""
        return self.stage is Stage.OUT and now >= self._next_at

    def try_requests(self, now: float) -> None:
        """It has generated a token: some requests may come."""
        self.stage, self._taken, self._succeeded, self._next_at = Stage.ON_TRIAL, 0, 0, now

    def may_take(self, now: float) -> bool:
        """Whether it may get a request now; `took` is called when it does."""
        return self.stage is Stage.IN or (self.stage is Stage.ON_TRIAL and now >= self._next_at)

    def took(self, now: float) -> None:
        self._taken += 1
        self._next_at = max(self._next_at, now + TRIAL_S)

    def forget(self) -> None:
        """Nothing is held against it any more: it has proved itself, or another server may have taken its place."""
        self.stage, self._pause_s = Stage.IN, FIRST_PAUSE_S
        self._ends.clear()
