"""One attempt on one backend, timed and counted as its tokens pass: a pipe in front of a sink.

In: sink calls. Out: the same calls, and one record at the end. Knows no Prometheus.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from gateway.core import FinishReason, GenerateRequest, Route, Sink, TokenLogprob
from gateway.errors import GatewayError

CANCELLED = "cancelled"
MOVED = "moved"  # to another backend, where another attempt goes on
BEGUN_AGAIN = "begun_again"  # because what it begins with is known now


class Recorder(Protocol):
    """Counts an attempt at its end. Times are `clock`'s seconds."""

    def clock(self) -> float: ...

    def record(self, observation: "Observation", outcome: str) -> None: ...


class Observation:
    """The pipe: passes every sink call on, and records once, at the end. Leaving it unfinished means `cancelled`.

    A `tokens` call costs one reading of the clock and the noting of its ids; everything else waits for the end.
    `first`: when the first token came, None before that. `token_ids`: the answer's so far. `is_moved`: another attempt
    has begun the answer; `earlier` of its tokens are that one's, and `first` and `last` are the whole answer's.
    """

    __slots__ = (
        "_clock", "_is_over", "_recorder", "_sink", "earlier", "first", "has_scores", "is_moved", "last", "request",
        "route", "started", "token_ids",
    )  # fmt: skip

    def __init__(self, request: GenerateRequest, route: Route, sink: Sink, recorder: Recorder, started: float) -> None:
        self.request = request
        self.route = route
        self.started = started
        self.first: float | None = None
        self.last = started
        self.token_ids: list[int] = []
        self.earlier = 0
        self.is_moved = self.has_scores = False
        self._sink = sink
        self._recorder = recorder
        self._clock = recorder.clock
        self._is_over = False

    def follow(self, before: "Observation") -> None:
        """Makes this the attempt that goes on with the answer of one that has ended."""
        self.first, self.last = before.first, before.last
        self.token_ids, self.earlier = before.token_ids, len(before.token_ids)
        self.is_moved = True

    def tokens(self, token_ids: Sequence[int]) -> None:
        self.last = self._clock()
        if self.first is None:
            self.first = self.last
        self.token_ids += token_ids
        self._sink.tokens(token_ids)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        self.has_scores = True
        self._sink.scores(entries)

    def finish(self, reason: FinishReason) -> None:
        self.end(reason.value)
        self._sink.finish(reason)

    def fail(self, error: GatewayError) -> None:
        self.end(error.code)
        self._sink.fail(error)

    def end(self, outcome: str) -> None:
        """Records how it ended; the first call counts. Callers report ends no backend sees, such as a stop string."""
        if not self._is_over:
            self._is_over = True
            self._recorder.record(self, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(CANCELLED)
