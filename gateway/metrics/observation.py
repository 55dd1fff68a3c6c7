"""One attempt on one backend, timed and counted as its tokens pass: a pipe in front of a sink.

In: sink calls. Out: the same calls, and one record at the end. Knows no Prometheus.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from gateway.core import FinishReason, GenerateRequest, Route, Sink, TokenLogprob
from gateway.errors import GatewayError
from gateway.flow import Flow
from gateway.lengths import Lengths, find_bound

CANCELLED = "cancelled"
MOVED = "moved"  # to another backend, where another attempt goes on
BEGUN_AGAIN = "begun_again"  # because what it begins with is known now


FINISHED = frozenset(reason.value for reason in FinishReason)


class Recorder(Protocol):
    """Counts an attempt at its end. Times are `clock`'s seconds."""

    def clock(self) -> float: ...

    def find_flow(self, request: GenerateRequest, backend: str, *, is_fixed: bool) -> Flow: ...

    def find_lengths(self, request: GenerateRequest) -> Lengths: ...

    def record(self, observation: "Observation", outcome: str) -> None: ...


class Observation:
    """The pipe: passes every sink call on, and records once, at the end. Leaving it unfinished means `cancelled`.

    A `tokens` call costs one reading of the clock, the noting of its ids and their counting in the backend's flow;
    everything else waits for the end.
    `first`: when the first token came, None before that. `token_ids`: the answer's so far. `is_moved`: another attempt
    has begun the answer; `earlier` of its tokens are that one's, and `first` and `last` are the whole answer's.
    """

    __slots__ = (
        "_bound", "_bucket", "_clock", "_flow", "_has_begun", "_is_over", "_lengths", "_recorder", "_sink", "earlier",
        "first", "has_scores", "is_moved", "last", "request", "route", "started", "token_ids",
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
        self._is_over = self._has_begun = False
        self._flow = recorder.find_flow(request, route.backend, is_fixed=False)
        self._flow.begin(len(request.prompt))
        self._lengths = recorder.find_lengths(request)
        self._bucket = self._lengths.begin(0)
        self._bound = find_bound(self._bucket)

    def follow(self, before: "Observation") -> None:
        """Makes this the attempt that goes on with the answer of one that has ended."""
        self.first, self.last = before.first, before.last
        self.token_ids, self.earlier = before.token_ids, len(before.token_ids)
        self.is_moved = True
        self._bucket = self._lengths.shift(self._bucket, self.earlier)
        self._bound = find_bound(self._bucket)

    def fix(self) -> None:
        """It can go on nowhere else. Call it before the first token."""
        self._flow.end(len(self.request.prompt), 0, has_begun=False)
        self._flow = self._recorder.find_flow(self.request, self.route.backend, is_fixed=True)
        self._flow.begin(len(self.request.prompt))

    def tokens(self, token_ids: Sequence[int]) -> None:
        self.last = self._clock()
        if not self._has_begun:
            self._begin()
        self.token_ids += token_ids
        flow, count = self._flow, len(token_ids)
        flow.generated += count
        flow.held += count
        if len(self.token_ids) >= self._bound:
            self._bucket = self._lengths.grow(self._bucket, len(self.token_ids))
            self._bound = find_bound(self._bucket)
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
            self._leave(is_finished=outcome in FINISHED)
            self._recorder.record(self, outcome)

    def drop(self) -> None:
        """The backend did not even begin: it is under way no more, and no attempt to be recorded."""
        if not self._is_over:
            self._leave(is_finished=False)

    def _leave(self, *, is_finished: bool) -> None:
        self._is_over = True
        generated = len(self.token_ids) - self.earlier
        self._flow.end(len(self.request.prompt), generated, has_begun=self._has_begun)
        if is_finished:
            # The prompt of an attempt that goes on has what was generated before.
            self._lengths.finish(self._bucket, len(self.request.prompt) - self.earlier, len(self.token_ids))
        else:
            self._lengths.leave(self._bucket)

    def _begin(self) -> None:
        self._has_begun = True
        if self.first is None:
            self.first = self.last
        self._flow.decode(len(self.request.prompt), self.last)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(CANCELLED)
