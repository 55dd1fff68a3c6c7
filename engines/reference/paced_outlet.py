"""When computed tokens leave: at the pace of a physical model.

In: arrivals, departures and computed tokens, from any thread. Out: tokens through `hand_out`, and which requests the
engine should step next. Knows no engine and no wire.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from engines.reference.engine import EngineLoad, TokenOutput
from engines.reference.outlet import HandOut, Outlet
from engines.reference.paced_load import describe_paced
from engines.reference.pacing import Pacer


@dataclass(slots=True)
class _Answer:
    """`ahead`: computed tokens that are not due; `owed`: due ones that are not computed; one of both is empty."""

    ahead: deque[TokenOutput] = field(default_factory=deque)
    owed: int = 0
    cached: int = 0
    is_complete: bool = False


class PacedOutlet(Outlet):
    """Tokens are computed a few ahead and leave when the pacer's steps end, from a thread of their own, so that a slow
    computation delays none of them. A token that is computed too late leaves as soon as it can and delays no later one.

    A computation is wanted when some request has fewer than `low` tokens ahead, and then for all with fewer than
    `high`. This keeps batches full although the replicas step at different times.
    """

    def __init__(self, pacer: Pacer, *, low: int = 2, high: int = 6) -> None:
        self.pacer = pacer
        self._low = low
        self._high = high
        self._answers: dict[str, _Answer] = {}
        self._released: list[TokenOutput] = []
        self._late = 0
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

    def arrive(self, request_id: str, prompt: Sequence[int], tokens: int) -> None:
        with self._changed:
            now = self._advance()
            self._answers[request_id] = _Answer()
            self.pacer.arrive(request_id, prompt, tokens, now)
            self._changed.notify()

    def leave(self, request_id: str) -> None:
        with self._changed:
            self._advance()
            if self._answers.pop(request_id, None) is not None:
                self.pacer.leave(request_id)
                self._changed.notify()

    def wanted(self) -> Collection[str]:
        with self._changed:
            return set(self._short_of(self._high)) if self._short_of(self._low) else ()

    def computed(self, outputs: Sequence[TokenOutput]) -> None:
        with self._changed:
            for output in outputs:
                answer = self._answers.get(output.request_id)
                if answer is not None:  # else it was cancelled during the computation
                    answer.ahead.append(output)
                    answer.is_complete = output.finish_reason is not None
                    self._release(output.request_id, answer)
            self._changed.notify()

    def describe(self, load: EngineLoad) -> EngineLoad:
        return replace(describe_paced(load, self.pacer), late_tokens=self._late)

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
            return released, bool(self._short_of(self._low))

    def _wait_s(self, now: float) -> float | None:
        due = self.pacer.next_due()
        return None if due == math.inf else max(0.0, due - now)

    def _advance(self) -> float:
        now = time.monotonic()
        for due in self.pacer.advance(now):
            answer = self._answers.get(due.request_id)
            if answer is not None:  # else it has ended before its last token
                answer.owed += due.tokens
                answer.cached = due.cached
                self._release(due.request_id, answer)
                self._late += 0 if answer.is_complete else min(answer.owed, due.tokens)
        return now

    def _release(self, request_id: str, answer: _Answer) -> None:
        """Releases what is both computed and due. An answer that ends leaves its replica."""
        while answer.owed and answer.ahead:
            answer.owed -= 1
            output = answer.ahead.popleft()
            self._released.append(output._replace(cached=answer.cached) if answer.cached else output)
            if output.finish_reason is not None:
                del self._answers[request_id]
                self.pacer.leave(request_id)

    def _short_of(self, tokens: int) -> list[str]:
        """The unfinished requests with fewer than `tokens` computed ahead of release."""
        answers = self._answers.items()
        return [name for name, answer in answers if not answer.is_complete and len(answer.ahead) - answer.owed < tokens]
