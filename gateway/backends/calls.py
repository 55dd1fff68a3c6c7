"""LiveCall keeps what every adapter promises its sink: ids in order, then one end, even if the engine falls silent.

Adapters pass in what they read; the sink receives ids and the end by plain calls. Knows no wire and no connection.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from mypy_extensions import mypyc_attr

from gateway.core import FinishReason, GenerateRequest, Sink, TokenLogprob
from gateway.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
)

End: TypeAlias = FinishReason | GatewayError
Probed = TypeVar("Probed")
Read_contra = TypeVar("Read_contra", contravariant=True)  # the data of one read of a connection

logger = logging.getLogger(__name__)

LARGEST_VOCABULARY = 2**31  # ids have 32 bits on every wire
MAX_LAYOUTS = 4  # how often the reader of one answer learns the layout of its messages, should it change
READY_TIMEOUT_S = 5.0  # for one probe of a server's readiness
SWEEPS_PER_TIMEOUT = 8  # a silent call ends at most an eighth of the limit late


async def in_time(probe: Coroutine[Any, Any, Probed]) -> Probed:
    """Returns what the probe of a server's readiness returns. Raises TimeoutError, and what the probe raises.

    The time is counted in parts, as in LiveCalls: if our own process was held up, the answer waits unread.
    """
    task = asyncio.get_running_loop().create_task(probe)
    try:
        for _ in range(SWEEPS_PER_TIMEOUT):
            await asyncio.wait({task}, timeout=READY_TIMEOUT_S / SWEEPS_PER_TIMEOUT)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


class Reader(Protocol[Read_contra]):
    """Parses one answer. `must_abort`: the reader has ended the answer, but the engine goes on until it is aborted."""

    @property
    def must_abort(self) -> bool: ...

    def read(self, data: Read_contra, /) -> tuple[Sequence[int], End | None]:
        """Returns the new ids, possibly none, and how generation ended, None if it has not."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveCall:
    """One running generation. An adapter calls `receive` and `fail`, and `release` when its connection is free again.

    It is neither generic nor abstract, because it is compiled: a base class that is not compiled would make it slow,
    and weak references to it unsafe (docs/decisions/0016). `receive` passes its data to `answer`.
    """

    # Any: as in receive
    def __init__(self, calls: "LiveCalls", sink: Sink, request: GenerateRequest, answer: Reader[Any]) -> None:
        self._answer = answer
        self._calls = calls
        self._sink = sink
        self._params = request.params
        self._prompt_tokens = len(request.prompt)
        self._max_tokens = request.params.max_tokens
        self._delivered = 0
        self._silent_sweeps = 0
        self.is_over = False
        calls.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} tokens={self._delivered} {'over' if self.is_over else 'live'}>"

    @property
    def progress(self) -> int:
        return self._delivered

    def abort(self) -> None:
        """Close the connection or stream now, so that the engine stops generating; idempotent."""
        raise NotImplementedError

    def receive(self, data: Any) -> None:  # Any: what its own reader reads
        """Parse `data`, and pass its new ids and its end, if it has them, to the sink."""
        token_ids, end = self._answer.read(data)
        if token_ids and not self.is_over:
            self._silent_sweeps = 0
            self._delivered += len(token_ids)
            if self._delivered <= self._max_tokens:
                self._sink.tokens(token_ids)
            else:  # only max_tokens bounds the buffers downstream
                self._end(BackendProtocolError(f"{self._calls.backend} sent more tokens than the request allows"))
        # Checked again: a sink may cancel from inside tokens(), for instance when a stop string is complete.
        if end is not None and not self.is_over:
            self._end(end)

    def fail(self, error: GatewayError) -> None:
        """End with an error and abort the engine's work; no effect after the end."""
        if not self.is_over:
            self._end(error)

    def fail_unless_begun(self, error: GatewayError) -> None:
        """End with an error if nothing has been delivered yet."""
        if not self._delivered:
            self.fail(error)

    def cancel(self) -> None:
        """Does what `core.Call.cancel` does. After a normal end the exchange runs on: its connection can be reused."""
        if not self.is_over:
            self._detach_sink()
            self._abort_and_release()

    def release(self) -> None:
        """Stops LiveCalls from watching this call: its connection or stream is free."""
        self._calls.discard(self)

    def sweep(self) -> None:
        """Abort after SWEEPS_PER_TIMEOUT sweeps without an id or, after the answer, without the exchange's end."""
        self._silent_sweeps += 1
        if self._silent_sweeps <= SWEEPS_PER_TIMEOUT:
            return
        if self.is_over:
            self._abort_and_release()
        else:
            self._end(self._calls.timeout_error())

    def _end(self, end: End) -> None:
        if isinstance(end, FinishReason) and self._delivered < self._min_length(end):
            early = f"after {self._delivered} of {self._max_tokens} tokens, which the request does not allow"
            end = BackendProtocolError(f"{self._calls.backend} ended the answer {early}")
        elif isinstance(end, FinishReason) and not self._may_end(end):
            early = f"after {self._delivered} of {self._max_tokens} tokens, for a limit that others went beyond"
            end = BackendProtocolError(f"{self._calls.backend} ended the answer {early}")
        sink = self._detach_sink()
        if isinstance(end, GatewayError):
            self._abort_and_release()
            sink.fail(self._adjust(end))
        else:
            sink.finish(end)
            if self._answer.must_abort:
                self._abort_and_release()

    def _min_length(self, reason: FinishReason) -> int:
        """Returns how many tokens an answer that ends for this reason has at least.

        If end tokens are ignored, an answer has max_tokens unless a stop token ends it. (A stop string cancels the
        call.) Otherwise LENGTH may come early: the engine's limit on the context may be narrower than the one we know.
        """
        params = self._params
        may_stop = reason is FinishReason.STOP and params.stop_token_ids
        return params.max_tokens if params.ignore_eos and not may_stop else 1

    def _may_end(self, reason: FinishReason) -> bool:
        is_short = reason is FinishReason.LENGTH and self._delivered < self._max_tokens
        return self._calls.may_end(self._prompt_tokens + self._delivered, is_short)

    def _detach_sink(self) -> Sink:
        """Mark the call as over and return its sink. The call drops it: the two must not keep each other in memory."""
        self.is_over = True
        sink, self._sink = self._sink, NO_SINK
        return sink

    def _adjust(self, error: GatewayError) -> GatewayError:
        """Replace BackendUnavailable, which promises that nothing was answered, once tokens were delivered."""
        if self._delivered and isinstance(error, BackendUnavailable):
            return (BackendLost if error.is_down else BackendError)(error.message)
        return error

    def _abort_and_release(self) -> None:
        self.abort()
        self.release()


class _NoSink:
    """The sink of a call that is over: ignores everything."""

    def tokens(self, token_ids: Sequence[int]) -> None:
        pass

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        pass

    def finish(self, reason: FinishReason) -> None:
        pass

    def fail(self, error: GatewayError) -> None:
        pass


NO_SINK = _NoSink()


class WatchedCall(Protocol):
    """A call as LiveCalls sees it. `progress` grows with what the engine has generated."""

    @property
    def progress(self) -> int: ...

    def sweep(self) -> None: ...

    def fail(self, error: GatewayError) -> None: ...

    def fail_unless_begun(self, error: GatewayError) -> None: ...


class LiveCalls:
    """The calls of one backend, and one timer that ends the calls whose engine has fallen silent.

    One sweep serves all calls: a timer reset at every token would cost more than passing the token on. Silence is
    counted in sweeps and not measured by a clock: if our own process was held up, ids wait unread in its sockets.
    """

    def __init__(self, backend: str, idle_timeout_s: float) -> None:
        self.backend = backend
        self._idle_timeout_s = idle_timeout_s
        self._calls: set[WatchedCall] = set()
        self._longest = 0  # tokens of a prompt and its answer, which the engine's limit on the context allows
        self._next_sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"<LiveCalls {self.backend} {len(self)}>"

    def add(self, call: WatchedCall) -> None:
        self._calls.add(call)
        if self._next_sweep is None:
            self._arm()

    def discard(self, call: WatchedCall) -> None:
        self._calls.discard(call)

    def may_end(self, tokens: int, is_short: bool) -> bool:
        """Whether an answer may end now that it has so many tokens with its prompt. `is_short`: for its length, but it
        may have more tokens: that is the engine's limit on the context, unless a longer one was seen.
        """
        if is_short and tokens < self._longest:
            return False
        self._longest = max(self._longest, tokens)
        return True

    def fail_waiting(self) -> None:
        """Fail calls without a token, because the engine answers no probes: another backend can take them at once.

        A vLLM that is shutting down, for example, keeps its connections open and sends nothing more on them.
        """
        self._longest = 0  # another server may come in its place
        for call in tuple(self._calls):
            call.fail_unless_begun(BackendUnavailable(f"{self.backend} is not ready any more"))

    async def ask_ready(self, probe: Coroutine[Any, Any, bool], renew: Callable[[], None]) -> bool:
        """Returns what a probe of the server's readiness returns; False if it fails, and what waits then fails too.

        `renew` is called where no answer comes in time: the connection may be dead.
        """
        before = {call: call.progress for call in self._calls}
        try:
            is_ready = await in_time(probe)
        except GatewayError:
            is_ready = False
        except TimeoutError:
            renew()
            is_ready = self._is_busy(before)
        if not is_ready:
            self.fail_waiting()
        return is_ready

    def _is_busy(self, before: Mapping[WatchedCall, int]) -> bool:
        """Returns whether the engine, which has let a probe wait too long, has generated since; logs which it is.

        Short of processor time, an engine that is well may answer no probe in time. Then nothing is to leave it:
        everything at once would come to an engine that may be as short of time.
        """
        is_busy = any(call.progress > before.get(call, 0) for call in (*before, *self._calls))
        state = "but generates: it is busy" if is_busy else "and generates nothing"
        logger.warning("%s answers no probe within %g s, %s", self.backend, READY_TIMEOUT_S, state)
        return is_busy

    def close(self, error: GatewayError) -> None:
        """End every call with `error` and stop the timer."""
        for call in tuple(self._calls):
            call.fail(error)
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def timeout_error(self) -> GatewayError:
        return BackendTimeout(f"{self.backend} sent nothing for {self._idle_timeout_s:g} s")

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_sweep = loop.call_later(self._idle_timeout_s / SWEEPS_PER_TIMEOUT, self._sweep)

    def _sweep(self) -> None:
        self._next_sweep = None
        if self._calls:
            self._arm()
        for call in tuple(self._calls):
            call.sweep()
