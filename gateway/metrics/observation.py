"""One attempt on one backend, timed and counted as its tokens pass: a pipe in front of a sink.

In: sink calls. Out: the same calls, and one report at the end. Knows no Prometheus.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from gateway.core import FinishReason, Sink
from gateway.errors import GatewayError

CANCELLED = "cancelled"


class Timing:
    """When the first and the last token of an answer came, and how many there were."""

    __slots__ = ("first", "last", "started", "tokens")

    def __init__(self, started: float) -> None:
        self.started = started
        self.first: float | None = None
        self.last = started
        self.tokens = 0


class Observation:
    """The pipe: passes every sink call on, and reports once, at the end. Leaving it unfinished means `cancelled`.

    Per `tokens` call it costs one clock reading and two additions; all else waits for the end.
    """

    __slots__ = ("_clock", "_record", "_sink", "_timing")

    def __init__(
        self, sink: Sink, timing: Timing, clock: Callable[[], float], record: Callable[[Timing, str], None]
    ) -> None:
        self._sink = sink
        self._timing = timing
        self._clock = clock
        self._record: Callable[[Timing, str], None] | None = record

    def tokens(self, token_ids: Sequence[int]) -> None:
        timing = self._timing
        timing.last = self._clock()
        if timing.first is None:
            timing.first = timing.last
        timing.tokens += len(token_ids)
        self._sink.tokens(token_ids)

    def finish(self, reason: FinishReason) -> None:
        self.end(reason.value)
        self._sink.finish(reason)

    def fail(self, error: GatewayError) -> None:
        self.end(error.code)
        self._sink.fail(error)

    def end(self, outcome: str) -> None:
        """Report how it ended; the first word counts. For ends the backend does not know of, such as a stop string."""
        if (record := self._record) is not None:
            self._record = None
            record(self._timing, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(CANCELLED)
