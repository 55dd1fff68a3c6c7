"""How far an engine's count is from the ledger's, and how much of that lasts. Pure.

In: an engine's count, and the ledger's just before and just after it was read. Out: whole requests, positive if the
engine holds more than it was sent. Reads no clock.
"""

from collections import deque


def find_drift(engine: int, before: int, after: int) -> int:
    """Returns the engine's count less the ledger's at the moment when the engine counted.

    Requests come and go while the engine answers, so a count between the two readings of the ledger is no drift.
    """
    low, high = min(before, after), max(before, after)
    return engine - min(max(engine, low), high)


class SteadyDrift:
    """The drift that every reading of the last `for_s` seconds shares, so that requests on their way do not count."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._readings: deque[tuple[float, int]] = deque()

    def feed(self, drift: int | None, now: float) -> int | None:
        """Returns the reading nearest 0, 0 if its sign changed; None until gapless readings cover `for_s` seconds."""
        if drift is None:
            self._readings.clear()
            return None
        self._readings.append((now, drift))
        while len(self._readings) > 1 and now - self._readings[1][0] >= self._for_s:
            self._readings.popleft()
        return self._find_least() if now - self._readings[0][0] >= self._for_s else None

    def _find_least(self) -> int:
        drifts = [drift for _, drift in self._readings]
        return max(min(drifts), 0) + min(max(drifts), 0)
