"""The token lane to vLLM over HTTP: ids in, ids out, by /inference/v1/generate or, where that is off, /v1/completions.

Implements core.Backend. The bytes' form is vllm_json's affair, connections are http1_client's.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import cast

from gateway.backends.calls import LARGEST_VOCABULARY, LiveCall, LiveCalls
from gateway.backends.http1 import Exchange, Take
from gateway.backends.http1_client import Client
from gateway.backends.http1_framing import Head
from gateway.backends.needs import corrected, unusable_guide
from gateway.backends.vllm_json import COMPLETIONS, GENERATE, REFUSED, Answer, encode, refusal
from gateway.backends.vllm_scores import MAX_AT_ONCE, ScoredAnswer
from gateway.core import Call, GenerateRequest, Need, Sink, TokenLogprob
from gateway.errors import BackendUnavailable, GatewayError
from gateway.settings import VLLMSettings

READY_TIMEOUT_S = 5.0
MAX_REFUSAL_BYTES = 64 * 1024

# Without --enable-scale-out vLLM answers 403 on /inference/v1/generate; releases that do not have it, 404 or 405.
ROUTE_IS_OFF = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
ROUTE_IS_ON = REFUSED  # what an empty request gets from it

# What every release can do as it is started by default, on either lane; `priority` needs --scheduling-policy.
CAPABILITIES = frozenset({
    Need.LOGPROBS, Need.PROMPT_LOGPROBS, Need.PENALTIES, Need.MIN_TOKENS,
    Need.LOGIT_BIAS, Need.MIN_P, Need.GUIDE, Need.RELAY,
})  # fmt: skip


class VLLMCall(LiveCall):
    """One answer from vLLM, on the route its backend prefers; falls back to the other when that one is off."""

    def __init__(self, backend: "VLLMBackend", request: GenerateRequest, sink: Sink) -> None:
        self._if_refused = None if request.params.guide is None else unusable_guide(request)
        super().__init__(backend.calls, sink, request.params, self._reader(backend, request))
        self._backend = backend
        self._request = request
        self._id = (
            f"{request.request_id}-{token_hex(4)}"  # a request that comes back to vLLM must not find itself there
        )
        self._status = 0
        self._is_answered = False  # by the engine, and not refused
        self._refusal = b""
        self._exchange: Exchange | None = None
        self._begin(self._choose_route())

    def hang_up(self) -> None:
        if self._exchange is not None:
            self._exchange.abort()  # vLLM aborts a request whose client disconnects; nothing else needs telling

    def release(self) -> None:
        self._exchange = None  # it holds the request's bytes, and us as its receiver
        super().release()

    def whole(self, head: Head, data: bytes) -> None:
        self.head(head, len(data))(data)
        self.done()

    def head(self, head: Head, length: int | None) -> Take:
        self._status = head.status
        self._is_answered = head.status == HTTPStatus.OK
        return self.take if self._is_answered else self._refused

    def done(self) -> None:
        status = self._status
        if self._is_answered:
            self.fail(BackendUnavailable(f"{self._backend.name} ended its answer early"))
        elif self._route == GENERATE and status in ROUTE_IS_OFF and not self.is_over:
            self._backend.route = COMPLETIONS
            self._begin(COMPLETIONS)
            return
        else:
            self.fail(refusal(self._backend.name, status, self._refusal, self._if_refused))
        self.release()

    def lost(self, error: GatewayError) -> None:
        self.fail(error)
        self.release()

    def _reader(self, backend: "VLLMBackend", request: GenerateRequest) -> Answer:
        return Answer(backend.name, request, backend.vocab_size, self._if_refused)

    def _choose_route(self) -> str:
        return self._backend.route or GENERATE

    def _refused(self, data: bytes) -> None:
        if len(self._refusal) < MAX_REFUSAL_BYTES:
            self._refusal += data

    def _begin(self, route: str) -> None:
        self._route = route
        self._refusal = b""
        message = self._backend.client.render("POST", route, encode(route, self._request, self._id))
        self._exchange = self._backend.client.send(message, self)


class ScoredCall(VLLMCall):
    """One whose sink hears log-probabilities too.

    By /v1/completions, whatever the backend prefers: the other route streams none of the prompt's, leaves the last of
    the most probable out where the token taken is not among them, and has told them in two forms in a year.
    """

    def __init__(self, backend: "VLLMBackend", request: GenerateRequest, sink: Sink) -> None:
        self._slices: Iterator[list[TokenLogprob]] | None = None  # of what is being told
        self._later: list[bytes] = []  # what has come meanwhile
        self._ended: Callable[[], None] | None = None
        super().__init__(backend, request, sink)

    def take(self, data: bytes) -> None:
        if self._slices is None:
            self._slices = cast("ScoredAnswer", self._answer).scores(data)
            self._tell()
        else:
            self._later.append(data)

    def done(self) -> None:
        if self._slices is None:
            super().done()
        else:
            self._ended = super().done

    def lost(self, error: GatewayError) -> None:
        if self._slices is None:
            super().lost(error)
        else:
            self._ended = partial(super().lost, error)

    def _tell(self) -> None:
        """One slice in each turn of the loop, for the others' sake; a usual event has no more."""
        for entries in self._slices or ():
            self._sink.scores(entries)  # it may cancel at any word, and is not our sink any more then
            if self.is_over:
                break
            if len(entries) == MAX_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._tell)
                return
        self._slices = None
        super().take(b"")
        self._go_on()

    def _go_on(self) -> None:
        later, self._later = self._later, []
        if later:
            self.take(b"".join(later))
        elif self._ended is not None and self._slices is None:
            ended, self._ended = self._ended, None
            ended()

    def _reader(self, backend: "VLLMBackend", request: GenerateRequest) -> ScoredAnswer:
        return ScoredAnswer(backend.name, request, backend.vocab_size, self._if_refused)

    def _choose_route(self) -> str:
        return COMPLETIONS


class VLLMBackend:
    """One vLLM server. `vocab_size`: ids that it may send are below; the largest there can be if unknown."""

    def __init__(self, settings: VLLMSettings, vocab_size: int = LARGEST_VOCABULARY) -> None:
        self.name = settings.name
        self.vocab_size = vocab_size
        self.capabilities = corrected(CAPABILITIES, settings.capabilities)
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        self.client = Client(settings.url, peer=settings.name, connect_timeout_s=settings.connect_timeout_s)
        self.route: str | None = None  # not known yet, or no longer

    def __repr__(self) -> str:
        return f"<VLLMBackend {self.name} route={self.route} {self.calls!r} {self.client!r}>"

    def start(self, request: GenerateRequest, sink: Sink) -> Call:
        params = request.params
        is_scored = params.logprobs is not None or params.prompt_logprobs is not None
        return (ScoredCall if is_scored else VLLMCall)(self, request, sink)

    async def is_ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                is_healthy = await self._is_healthy()
                if is_healthy and self.route is None:
                    self.route = await self._find_route()
        except (GatewayError, TimeoutError):
            is_healthy = False
        if not is_healthy:
            self.route = None  # what comes back may be another release with other flags
            self.calls.fail_waiting()
        return is_healthy

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.client.aclose()

    async def _is_healthy(self) -> bool:
        status, _ = await self.client.fetch(self.client.render("GET", "/health"))
        return status == HTTPStatus.OK

    async def _find_route(self) -> str | None:
        """Ask for nothing: a server that has the route complains about the request, and no engine hears of it."""
        status, _ = await self.client.fetch(self.client.render("POST", GENERATE, b"{}"))
        if status in ROUTE_IS_OFF:
            return COMPLETIONS
        return GENERATE if status in ROUTE_IS_ON else None
