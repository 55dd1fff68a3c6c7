"""What every adapter owes its sink: ids in order, one end, then silence; and an end even when the engine goes dumb.

Adapters feed in decoded ids and ends; the sink hears them by plain calls. Knows no wire and no connection.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from mypy_extensions import mypyc_attr

from gateway.core import FinishReason, SamplingParams, Sink, TokenLogprob
from gateway.errors import (
    BackendError,
    BackendLost,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
)

End: TypeAlias = FinishReason | GatewayError
Read_contra = TypeVar("Read_contra", contravariant=True)  # what one read of a connection brings

LARGEST_VOCABULARY = 2**31  # ids have 32 bits on every wire
SWEEPS_PER_TIMEOUT = 8  # a silent call ends at most an eighth of the limit late


class Reader(Protocol[Read_contra]):
    """Understands one answer. `is_cut`: the reader has ended it, where the engine goes on and must be left."""

    @property
    def is_cut(self) -> bool: ...

    def read(self, data: Read_contra, /) -> tuple[Sequence[int], End | None]:
        """New ids, possibly none, and how generation ended if it did."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class LiveCall:
    """One generation under way. An adapter calls `take` and `fail`, and `release` when its connection is free again.

    Neither generic nor abstract, for it is compiled: a base that is not would make it slow and unsafe to refer to
    weakly (docs/decisions/0016). What `take` is given is what `answer` reads.
    """

    # Any: as in take
    def __init__(self, calls: "LiveCalls", sink: Sink, params: SamplingParams, answer: Reader[Any]) -> None:
        self._answer = answer
        self._calls = calls
        self._sink = sink
        self._params = params
        self._max_tokens = params.max_tokens
        self._delivered = 0
        self._silent_sweeps = 0
        self.is_over = False
        calls.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} tokens={self._delivered} {'over' if self.is_over else 'live'}>"

    def hang_up(self) -> None:
        """Leave the engine now, so that it stops working for us; idempotent."""
        raise NotImplementedError

    def take(self, data: Any) -> None:  # Any: what its own reader reads
        """Read and hand on: new ids, and the end if it came with them."""
        token_ids, end = self._answer.read(data)
        if token_ids and not self.is_over:
            self._silent_sweeps = 0
            self._delivered += len(token_ids)
            if self._delivered <= self._max_tokens:
                self._sink.tokens(token_ids)
            else:  # max_tokens is all that bounds the buffers downstream
                self._end(BackendProtocolError(f"{self._calls.backend} sent more tokens than the request allows"))
        # A sink may cancel from inside tokens(), for instance when a stop string is complete: so ask again.
        if end is not None and not self.is_over:
            self._end(end)

    def fail(self, error: GatewayError) -> None:
        """End with an error and leave the engine; nothing happens when the call is over."""
        if not self.is_over:
            self._end(error)

    def fail_unless_begun(self, error: GatewayError) -> None:
        """End with an error if nothing has been delivered yet."""
        if not self._delivered:
            self.fail(error)

    def cancel(self) -> None:
        """core.Call's. After a normal end it lets the exchange run out, so that its connection can be used again."""
        if not self.is_over:
            self._close()
            self._leave()

    def release(self) -> None:
        """Nothing of the engine's is held any more."""
        self._calls.discard(self)

    def sweep(self) -> None:
        """Give up when sweep after sweep nothing has come: neither an id nor, after the end, the exchange's own end."""
        self._silent_sweeps += 1
        if self._silent_sweeps <= SWEEPS_PER_TIMEOUT:
            return
        if self.is_over:
            self._leave()
        else:
            self._end(self._calls.timeout_error())

    def _end(self, end: End) -> None:
        if isinstance(end, FinishReason) and self._delivered < self._count_least(end):
            told = f"after {self._delivered} of {self._max_tokens} tokens, which the request does not allow"
            end = BackendProtocolError(f"{self._calls.backend} ended the answer {told}")
        sink = self._close()
        if isinstance(end, GatewayError):
            self._leave()
            sink.fail(self._as_of_now(end))
        else:
            sink.finish(end)
            if self._answer.is_cut:
                self._leave()

    def _count_least(self, reason: FinishReason) -> int:
        """How many tokens an answer that ends for this reason has at least.

        One whose end tokens are ignored goes on to max_tokens, unless one of its stop tokens ends it. (A stop string
        cancels the call.) The engine's own limit on the context may be narrower than what we know: it says so by this.
        """
        params = self._params
        may_stop = reason is FinishReason.STOP and params.stop_token_ids
        return params.max_tokens if params.ignore_eos and not may_stop else 1

    def _close(self) -> Sink:
        """From here on silence. The sink is let go: it and its call must not keep each other in memory."""
        self.is_over = True
        sink, self._sink = self._sink, NOBODY
        return sink

    def _as_of_now(self, error: GatewayError) -> GatewayError:
        """Unavailable promises that nothing was answered; once tokens have gone out that no longer holds."""
        if self._delivered and isinstance(error, BackendUnavailable):
            return (BackendLost if error.is_down else BackendError)(error.message)
        return error

    def _leave(self) -> None:
        self.hang_up()
        self.release()


class _Nobody:
    """The sink of a call that is over."""

    def tokens(self, token_ids: Sequence[int]) -> None:
        pass

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        pass

    def finish(self, reason: FinishReason) -> None:
        pass

    def fail(self, error: GatewayError) -> None:
        pass


NOBODY = _Nobody()


class Watched(Protocol):
    """What LiveCalls needs of a call."""

    def sweep(self) -> None: ...

    def fail(self, error: GatewayError) -> None: ...

    def fail_unless_begun(self, error: GatewayError) -> None: ...


class LiveCalls:
    """The calls of one backend, and the one timer that ends those whose engine has gone silent.

    One sweep for all: a timer set and reset for every token would cost more than passing the token on. Silence is
    counted in sweeps, not read off a clock: should our own process have been held up, ids wait in its sockets unread.
    """

    def __init__(self, backend: str, idle_timeout_s: float) -> None:
        self.backend = backend
        self._idle_timeout_s = idle_timeout_s
        self._calls: set[Watched] = set()
        self._next_sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"<LiveCalls {self.backend} {len(self)}>"

    def add(self, call: Watched) -> None:
        self._calls.add(call)
        if self._next_sweep is None:
            self._arm()

    def discard(self, call: Watched) -> None:
        self._calls.discard(call)

    def fail_waiting(self) -> None:
        """The engine does not answer probes: what has not begun may be tried elsewhere instead of waiting for silence.

        A vLLM that is told to end, for one, keeps its connections open and says nothing more on them.
        """
        for call in tuple(self._calls):
            call.fail_unless_begun(BackendUnavailable(f"{self.backend} is not ready any more"))

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
