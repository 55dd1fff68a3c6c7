"""The token lane: the gateway speaks text with the client and token ids with the engine.

In: Generations. Out: an answer, written into the reply by the engine's own calls. Knows no wire.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gateway.access import Ask
from gateway.core import Call, FinishReason, GenerateRequest, Guide, Route, TokenBackend, TokenLogprob
from gateway.errors import BackendTimeout, GatewayError
from gateway.language import ModelLanguage, TextDecoder
from gateway.lengths import Survival
from gateway.metrics import BEGUN_AGAIN, CANCELLED, MOVED, Metrics, Observation
from gateway.routing import Extent
from gateway.serving.continuation import find_end, find_obstacle, make_rest
from gateway.serving.relay_lane import RelayLane
from gateway.serving.reply import UNBUFFERED, Reply
from gateway.serving.work import make_digest
from gateway.settings import StreamSettings
from gateway.wire.answer import ChoiceGroup
from gateway.wire.choice import Choice, Write
from gateway.wire.translate import Generations, hold

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
    """The work.Work of a request that was translated. `is_limited`: its client says how long an answer may be."""

    generations: Generations
    lane: TokenLane
    streams: StreamSettings
    metrics: Metrics
    is_limited: bool = False

    @property
    def request(self) -> GenerateRequest:
        return self.generations.request

    @property
    def barred(self) -> frozenset[str]:
        return self.lane.relayed_only

    @property
    def ask(self) -> Ask:
        request = self.request
        longest = request.max_tokens if self.is_limited else None
        return Ask(request.sequences, self.generations.prompt_tokens, longest)

    def digest(self) -> int:
        request = self.request
        prompts = {id(each.prompt): each.prompt for each in self.generations.requests}.values()
        how = repr((request.model, request.params, request.sequences)).encode()
        return make_digest(how, *(array("q", prompt.token_ids).tobytes() for prompt in prompts))

    def begin(self, route: Route, reply: Reply) -> "TokenAttempt":
        attempt = TokenAttempt(self, reply)
        try:
            attempt.begin(route)
        except BaseException as error:
            attempt.end(error)
            raise
        return attempt


class TokenAttempt:
    """Every choice of a request on one backend, and what they share on the way to the reply."""

    def __init__(self, work: TokenWork, reply: Reply) -> None:
        self._work = work
        self._reply = reply
        self._requests = list(work.generations.requests)
        self._open = set(range(len(self._requests)))
        self._sinks: list[_ChoiceSink | _Beginning] = []
        self._running: list[tuple[Observation, Call]] = []
        self._group: ChoiceGroup | None = None
        self._lines: tuple[bytes, ...] = ()  # of the header
        self._keep_alive: KeepAlive | None = None
        self._fail: Callable[[GatewayError], bytes] | None = None  # what a stream that fails ends with
        self._commits = False  # whether a comment may be an answer's first bytes

    def begin(self, route: Route) -> None:
        """Begins every choice. Raises GatewayError if the backend does not even begin; call `end` all the same."""
        work = self._work
        self._group = group = work.generations.group()
        self._route = route
        self._requests = list(work.generations.requests)
        for index in range(len(self._requests)):
            parts = work.generations.choice(index, group)
            self._lines = (b"content-type: " + parts.frames.content_type, *UNBUFFERED)
            self._fail = self._fail or parts.frames.fail
            choice = Choice(parts.decoder, parts.frames, _Output(self, index), parts.details)
            self._sinks.append(self._make_sink(index, choice))
            self._running.append(self._start(index, route))
        # Comments for a stream while its engine is silent, where the operator wants them.
        if work.streams.keep_alive_s is not None and work.generations.presenter.stream:
            self._commits = work.streams.keep_alive_commits
            self._keep_alive = KeepAlive(
                work.streams.keep_alive_s, self._last_token, work.metrics.clock, self._write_comment
            )
            self._keep_alive.start()

    # work.Attempt

    def may_move(self, error: Exception) -> bool:
        """Whether every open choice may go on as it is, or start again, unseen.

        A silent engine may only be slow: then a whole answer is not generated twice.
        """
        return self._is_movable() or not (self._reply.has_begun or isinstance(error, BackendTimeout))

    def has_tokens(self, beyond: int = 0) -> bool:
        return any(len(seen.token_ids) > seen.earlier + beyond for _, seen in self._list_open())

    def has_answered(self) -> bool:
        return True

    def measure(self, lengths: Survival) -> Extent:
        requests = self._requests
        context, left = 0, 0.0
        for index in self._open:
            params, tokens = requests[index].params, len(self._running[index][0].token_ids)
            context += len(requests[index].prompt) + tokens
            left += lengths.left(tokens, params.max_tokens - tokens)
        return Extent(context, left, self._is_movable())

    def count(self) -> tuple[int, int]:
        """Nothing before there is a token of an answer."""
        if (group := self._group) is None:
            return 0, 0
        tokens = group.completion_tokens
        for index, (seen, _) in enumerate(self._running):
            if index in self._open:
                tokens += len(seen.token_ids)
        return (group.prompt_tokens, tokens) if tokens else (0, 0)

    def move(self, route: Route, error: Exception | None) -> None:
        self._reply.start(route)
        self._route = route
        if self._is_movable():
            self._go_on(route)
        else:
            self.end(error)
            self._open = set(range(len(self._requests)))
            self.begin(route)

    def end(self, error: BaseException | None) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        outcome = _outcome(error)
        for observation, call in self._running:
            observation.end(outcome)
            call.cancel()
        self._running.clear()  # these and the sinks refer to us: only the garbage collector would free them
        self._sinks.clear()

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
            reply.error_event = self._fail if self._work.generations.presenter.stream else None
        reply.exchange.write(frames)
        return reply.exchange.write

    def finish_choice(self, index: int, frames: bytes) -> None:
        """Completes a choice with `frames`. Its engine may not know of the end: a stop string is matched here."""
        self._open.discard(index)
        reply = self._reply
        if not self._open:
            if not reply.has_begun:
                reply.begin(200, self._lines, len(frames))
            reply.finish(frames)
            return
        if frames:
            self.begin_reply(frames)
        observation, call = self._running[index]
        observation.end(FinishReason.STOP)
        call.cancel()

    def begin_again(self, index: int, sink: "_ChoiceSink", guide: Guide) -> None:
        """Begins a choice again, held to a guide: what it has begun with is no call. Nobody has seen it."""
        observation, call = self._running[index]
        call.cancel()
        observation.end(BEGUN_AGAIN)
        self._sinks[index] = sink
        self._requests[index] = hold(self._requests[index], guide)
        try:
            self._running[index] = self._start(index, self._route)
        except GatewayError as error:
            self.stop(error)

    def _make_sink(self, index: int, choice: Choice) -> "_ChoiceSink | _Beginning":
        generations, sink = self._work.generations, _ChoiceSink(self, choice)
        if generations.fork is None:
            return sink
        decoder = generations.language.decoder(self._requests[index], (), shows_markers=True)
        return _Beginning(
            decoder, generations.fork.opening, sink, partial(self.begin_again, index, sink, generations.fork.guide)
        )

    def _is_movable(self) -> bool:
        seen = self._list_open()
        return not any(find_obstacle(request, len(so_far.token_ids), so_far.has_scores) for request, so_far in seen)

    def _list_open(self) -> list[tuple[GenerateRequest, Observation]]:
        """Returns the choices that are not complete; none where the backend did not even begin."""
        running = enumerate(self._running)
        return [(self._requests[index], seen) for index, (seen, _) in running if index in self._open]

    def _go_on(self, route: Route) -> None:
        """Goes on with the open choices, each from its last token."""
        moving = [(index, *self._running[index]) for index in sorted(self._open)]
        for _, _, call in moving:
            call.cancel()
        for index, seen, _ in moving:
            end = find_end(self._requests[index], seen.token_ids)
            if end is not None:
                seen.finish(end)
            else:
                seen.end(MOVED)
                self._sinks[index].drop_scores()
                self._running[index] = self._start(index, route, seen)

    def _start(self, index: int, route: Route, before: Observation | None = None) -> tuple[Observation, Call]:
        work, reply = self._work, self._reply
        request = self._requests[index]
        if before is not None:
            request = make_rest(request, before.token_ids)
        observation = work.metrics.observe(request, route, self._sinks[index], reply.arrived, before)
        if find_obstacle(request, 1, has_scores=False):
            observation.fix()
        try:
            return observation, work.lane.backends[route.backend].start(request, observation)
        except BaseException:  # else it would count as under way for ever
            observation.drop()
            raise

    def _last_token(self) -> float:
        return max(observation.last for observation, _ in self._running)

    def _write_comment(self) -> None:
        if self._reply.has_begun or self._commits:
            self.begin_reply(ALIVE)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return FinishReason.STOP  # without an engine's reason a stop string ended it
    return error.code if isinstance(error, GatewayError) else CANCELLED


class _ChoiceSink:
    """The core.Sink of one choice, whichever backend generates it. The attempt decides what a failed backend means."""

    __slots__ = ("drop_scores", "fail", "finish", "scores", "tokens")

    def __init__(self, attempt: TokenAttempt, choice: Choice) -> None:
        self.tokens = choice.tokens
        self.scores = choice.scores
        self.finish = choice.finish
        self.drop_scores = choice.drop_scores
        self.fail = attempt.stop


class _Beginning:
    """The core.Sink of a choice until it is known whether it begins with a call, which `opening` is the sign of.

    What has come by then goes on to `sink`, and all that follows; or `begin_again` is called.
    """

    def __init__(self, decoder: TextDecoder, opening: str, sink: _ChoiceSink, begin_again: Callable[[], None]) -> None:
        self._decoder = decoder
        self._opening = opening
        self._sink = sink
        self._begin_again = begin_again
        self._text = ""
        self._held: list[Callable[[], None]] = []
        self.tokens: Callable[[Sequence[int]], None] = self._take
        self.scores: Callable[[Sequence[TokenLogprob]], None] = self._hold_scores
        self.finish: Callable[[FinishReason], None] = self._finish
        self.drop_scores = sink.drop_scores
        self.fail = sink.fail

    def _take(self, token_ids: Sequence[int]) -> None:
        self._held.append(partial(self._sink.tokens, token_ids))
        self._text = (self._text + self._decoder.feed(token_ids)).lstrip()
        if self._text.startswith(self._opening):
            self._go_on()
        elif not self._opening.startswith(self._text):
            self._begin_again()

    def _hold_scores(self, entries: Sequence[TokenLogprob]) -> None:
        self._held.append(partial(self._sink.scores, entries))

    def _finish(self, reason: FinishReason) -> None:
        self._begin_again()  # it has ended without a call, and maybe without a word

    def _go_on(self) -> None:
        sink = self._sink
        self.tokens, self.scores, self.finish = sink.tokens, sink.scores, sink.finish
        for pass_on in self._held:
            pass_on()


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
