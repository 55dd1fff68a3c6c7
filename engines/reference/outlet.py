"""When computed tokens leave: at once, or at the pace of a measured curve.

In: arrivals, departures and computed tokens, from any thread. Out: tokens through `hand_out`, and which requests the
engine should step next. Knows no engine and no wire.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from engines.reference.engine import TokenOutput
from engines.reference.pacing import Pacer

HandOut = Callable[[Sequence[TokenOutput]], None]


class Outlet:
    """Stands between the engine's steps and the receivers. Here every step's tokens leave as soon as it ends."""

    def start(self, hand_out: HandOut, wake_engine: Callable[[], None]) -> None:
        self._hand_out = hand_out

    def close(self) -> None: ...

    def arrive(self, request_id: str) -> None: ...

    def leave(self, request_id: str) -> None: ...

    def wanted(self) -> Collection[str] | None:
        """The requests to step now: none if empty, all that the engine holds if None."""
        return None

    def computed(self, outputs: Sequence[TokenOutput]) -> None:
        self._hand_out(outputs)


class PacedOutlet(Outlet):
    """Tokens are computed a few ahead and leave when the pacer releases them, from a thread of their own, so that a
    step longer than the gap between two tokens delays none of them. Tokens that fall due within one tick leave
    together.

    A step is wanted when some request has fewer than `low` tokens ahead, and then for all with fewer than `high`. This
    keeps batches full although every request has its own rhythm.
    """

    def __init__(self, pacer: Pacer, *, tick_s: float = 0.004, low: int = 2, high: int = 6) -> None:
        self.pacer = pacer
        self._tick_s = tick_s
        self._low = low
        self._high = high
        self._ahead: dict[str, deque[TokenOutput]] = {}
        self._released: list[TokenOutput] = []
        self._changed = threading.Condition()
        self._is_closing = False

    def start(self, hand_out: HandOut, wake_engine: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(hand_out, wake_engine), name="pacing", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def arrive(self, request_id: str) -> None:
        with self._changed:
            now = self._advance()
            self._ahead[request_id] = deque()
            self.pacer.arrive(request_id, now)
            self._changed.notify()

    def leave(self, request_id: str) -> None:
        with self._changed:
            now = self._advance()
            if self._ahead.pop(request_id, None) is not None:
                self.pacer.leave(request_id, now)
                self._changed.notify()

    def wanted(self) -> Collection[str]:
        with self._changed:
            return set(self.pacer.short_of(self._high)) if self.pacer.short_of(self._low) else ()

    def computed(self, outputs: Sequence[TokenOutput]) -> None:
        with self._changed:
            for output in outputs:
                if output.request_id in self._ahead:  # else it was cancelled during the step
                    self._ahead[output.request_id].append(output)
                    self.pacer.computed(output.request_id, is_last=output.finish_reason is not None)
            self._changed.notify()

    def _run(self, hand_out: HandOut, wake_engine: Callable[[], None]) -> None:
        while not self._is_closing:
            released, is_short = self._take_released()
            if released:
                hand_out(released)
            if is_short:
                wake_engine()

    def _take_released(self) -> tuple[list[TokenOutput], bool]:
        with self._changed:
            if not self._released and not self._is_closing:
                self._changed.wait(self._wait_s(time.monotonic()))
            self._advance()
            released, self._released = self._released, []
            return released, bool(self.pacer.short_of(self._low))

    def _wait_s(self, now: float) -> float | None:
        due = self.pacer.next_due()
        return None if due == math.inf else max(0.0, math.ceil(due / self._tick_s) * self._tick_s - now)

    def _advance(self) -> float:
        now = time.monotonic()
        for request_id in self.pacer.advance(now):
            output = self._ahead[request_id].popleft()
            if output.finish_reason is not None:
                del self._ahead[request_id]
            self._released.append(output)
        return now
