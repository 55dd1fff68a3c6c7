"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: Generations. Out: an answer, written into the reply by the engine's own calls. Knows no wire.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.core import Call, FinishReason, GenerateRequest, Route, TokenBackend
from gateway.errors import GatewayError
from gateway.language import ModelLanguage
from gateway.metrics import CANCELLED, Metrics, Observation
from gateway.openai.choice import Choice, Write
from gateway.openai.translate import Generations
from gateway.serving.relay_lane import RelayLane
from gateway.serving.reply import UNBUFFERED, Reply
from gateway.settings import StreamSettings

ALIVE = b": keep-alive\n\n"  # a comment, which clients of event streams skip


@dataclass(frozen=True, slots=True)
class TokenLane:
    """A model whose backends take token ids. `relay` has those for a client's own body, on `relay_paths` too."""

    language: ModelLanguage
    backends: Mapping[str, TokenBackend]
    relay: RelayLane
    relay_paths: frozenset[str] = frozenset()
    reasoning_field: str = "reasoning"

    @property
    def relayed_only(self) -> frozenset[str]:
        """Backends that take no token ids."""
        return frozenset(self.relay.backends.keys() - self.backends.keys())


@dataclass(frozen=True, slots=True)
class TokenWork:
    """The work.Work of a request that was translated."""

    generations: Generations
    lane: TokenLane
    streams: StreamSettings
    metrics: Metrics

    @property
    def request(self) -> GenerateRequest:
        return self.generations.request

    @property
    def barred(self) -> frozenset[str]:
        return self.lane.relayed_only

    def begin(self, route: Route, reply: Reply) -> "TokenAttempt":
        attempt = TokenAttempt(self, route, reply)
        try:
            attempt.begin()
        except BaseException as error:
            attempt.end(error)
            raise
        return attempt


class TokenAttempt:
    """Every choice of a request on one backend, and what they share on the way to the reply."""

    def __init__(self, work: TokenWork, route: Route, reply: Reply) -> None:
        self._work = work
        self._route = route
        self._reply = reply
        self._backend = work.lane.backends[route.backend]
        self._open_choices = len(work.generations.requests)
        self._group = work.generations.group()
        self._running: list[tuple[Observation, Call]] = []
        self._lines: tuple[bytes, ...] = ()  # of the header
        self._keep_alive: KeepAlive | None = None
        self._commits = False  # whether a comment may be an answer's first bytes

    def begin(self) -> None:
        """Begins every choice. Raises GatewayError if the backend does not even begin; call `end` all the same."""
        work = self._work
        for index in range(self._open_choices):
            self._begin_choice(index)
        # Comments for a stream while its engine is silent, where the operator wants them.
        if work.streams.keep_alive_s is not None and work.generations.presentation.stream:
            self._commits = work.streams.keep_alive_commits
            self._keep_alive = KeepAlive(
                work.streams.keep_alive_s, self._last_token, work.metrics.clock, self._write_comment
            )
            self._keep_alive.start()

    def end(self, error: BaseException | None) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        outcome = _outcome(error)
        for observation, call in self._running:
            observation.end(outcome)
            call.cancel()
        self._running.clear()  # they refer to us: only the garbage collector would free them

    def stop(self, error: GatewayError) -> None:
        self._reply.fail(error)

    def pause(self) -> None:
        """Does nothing: max_tokens bounds what an engine may still send."""

    def resume(self) -> None:
        pass

    # What its choices call

    def begin_reply(self, frames: bytes) -> Write:
        """Writes the first frames of a choice, after the head if it is unsent. Returns the write for the rest."""
        reply = self._reply
        if not reply.has_begun:
            reply.begin(200, self._lines, None)
            reply.takes_events = self._work.generations.presentation.stream
        reply.exchange.write(frames)
        return reply.exchange.write

    def finish_choice(self, index: int, frames: bytes) -> None:
        """Completes a choice with `frames`. Its engine may not know of the end: a stop string is matched here."""
        self._open_choices -= 1
        reply = self._reply
        if not self._open_choices:
            if not reply.has_begun:
                reply.begin(200, self._lines, len(frames))
            reply.finish(frames)
            return
        if frames:
            self.begin_reply(frames)
        observation, call = self._running[index]
        observation.end(FinishReason.STOP)
        call.cancel()

    def _begin_choice(self, index: int) -> None:
        work = self._work
        request, parts = work.generations.requests[index], work.generations.choice(index, self._group)
        self._lines = (b"content-type: " + parts.frames.content_type, *UNBUFFERED)
        choice = Choice(parts.decoder, parts.frames, _Output(self, index), parts.details)
        observation = work.metrics.observe(request, self._route, choice, self._reply.arrived)
        self._running.append((observation, self._backend.start(request, observation)))

    def _last_token(self) -> float:
        return max(observation.last for observation, _ in self._running)

    def _write_comment(self) -> None:
        if self._reply.has_begun or self._commits:
            self.begin_reply(ALIVE)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return FinishReason.STOP  # without an engine's reason a stop string ended it
    return error.code if isinstance(error, GatewayError) else CANCELLED


class _Output:
    """The choice.ChoiceOutput that connects one choice with what it shares with the others."""

    __slots__ = ("_attempt", "_index", "begin", "fail")

    def __init__(self, attempt: TokenAttempt, index: int) -> None:
        self._attempt = attempt
        self._index = index
        self.begin = attempt.begin_reply
        self.fail = attempt.stop

    def finish(self, frames: bytes) -> None:
        self._attempt.finish_choice(self._index, frames)


class KeepAlive:
    """Calls `write_comment` after `seconds` without a token, and again after as many more.

    Clients, and every proxy before them, learn by it that a silent stream lives. `last_token`: returns when the last
    token came, on `clock`. Each stream that wants comments has one timer; a token needs none.
    """

    def __init__(
        self,
        seconds: float,
        last_token: Callable[[], float],
        clock: Callable[[], float],
        write_comment: Callable[[], None],
    ) -> None:
        self._seconds = seconds
        self._last_token = last_token
        self._clock = clock
        self._write_comment = write_comment
        self._last_comment = 0.0
        self._timer: asyncio.TimerHandle

    def start(self) -> None:
        self._last_comment = self._clock()
        self._wait(self._seconds)

    def stop(self) -> None:
        """Stops the comments. Call it only after `start`."""
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        now = self._clock()
        silent_s = now - max(self._last_token(), self._last_comment)
        if silent_s < self._seconds:
            self._wait(self._seconds - silent_s)
            return
        self._last_comment = now
        self._wait(self._seconds)  # before the comment, whose write may be what ends this
        self._write_comment()
