"""The token lane to vLLM over HTTP: ids in, ids out, by /inference/v1/generate or, where that is off, /v1/completions.

Implements core.TokenBackend. vllm_json encodes and parses; http1_client owns the connections.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from secrets import token_hex
from typing import cast

from gateway.backends.calls import LARGEST_VOCABULARY, LiveCall, LiveCalls
from gateway.backends.capabilities import apply_overrides, guide_error
from gateway.backends.http1_client import Client
from gateway.backends.http1_connection import Deliver, Exchange
from gateway.backends.http1_framing import Head
from gateway.backends.vllm_json import COMPLETIONS, GENERATE, REFUSAL_STATUSES, EventReader, encode, error_of_answer
from gateway.backends.vllm_scores import MAX_AT_ONCE, ScoredEventReader
from gateway.core import NO_CACHE_USE, Call, GenerateRequest, Need, Sink, TokenLogprob
from gateway.errors import BackendUnavailable, GatewayError
from gateway.settings import VLLMSettings

MAX_REFUSAL_BYTES = 64 * 1024

# Without --enable-scale-out vLLM answers 403 on /inference/v1/generate; releases without the route answer 404 or 405.
ROUTE_OFF_STATUSES = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
ROUTE_ON_STATUSES = REFUSAL_STATUSES  # for an empty request

# The needs that every release serves by default, on either lane; Need.PRIORITY requires --scheduling-policy.
CAPABILITIES = frozenset({
    Need.LOGPROBS, Need.PROMPT_LOGPROBS, Need.PENALTIES, Need.MIN_TOKENS,
    Need.LOGIT_BIAS, Need.MIN_P, Need.GUIDE, Need.CACHE_SALT, Need.RELAY,
})  # fmt: skip


class VLLMCall(LiveCall):
    """One answer from vLLM, on the route that its backend prefers; falls back to the other route if that is off."""

    def __init__(self, backend: "VLLMBackend", request: GenerateRequest, sink: Sink) -> None:
        self._if_refused = None if request.params.guide is None else guide_error(request)
        super().__init__(backend.calls, sink, request, self._make_reader(backend, request))
        self._backend = backend
        self._request = request
        # The random part: when a request is sent again, vLLM may still hold the first one.
        self._id = f"{request.request_id}-{token_hex(4)}"
        self._status = 0
        self._is_answered = False  # the engine accepted the request
        self._refusal = b""
        self._exchange: Exchange | None = None
        self._send(self._choose_route())

    def abort(self) -> None:
        if self._exchange is not None:
            self._exchange.abort()  # vLLM aborts a request whose client disconnects

    def release(self) -> None:
        self._exchange = None  # it keeps the request's bytes, and this call as its receiver
        super().release()

    def receive_answer(self, head: Head, data: bytes) -> None:
        self.receive_head(head, len(data))(data)
        self.exchange_finished()

    def receive_head(self, head: Head, length: int | None) -> Deliver:
        self._status = head.status
        self._is_answered = head.status == HTTPStatus.OK
        return self.receive if self._is_answered else self._receive_refusal

    def exchange_finished(self) -> None:
        status = self._status
        if self._is_answered:
            self._note_cache_use()
            self.fail(BackendUnavailable(f"{self._backend.name} ended its answer early", was_lost=False))
        elif self._route == GENERATE and status in ROUTE_OFF_STATUSES and not self.is_over:
            self._backend.route = COMPLETIONS
            self._send(COMPLETIONS)
            return
        else:
            self.fail(error_of_answer(self._backend.name, status, self._refusal, self._if_refused))
        self.release()

    def exchange_failed(self, error: GatewayError) -> None:
        self.fail(error)
        self.release()

    def _note_cache_use(self) -> None:
        cached, request = cast("EventReader", self._answer).cached, self._request
        if cached is not None and (request.pin is None or request.run is None):
            self._backend.cache_use = self._backend.cache_use.add(len(request.prompt), cached)

    def _make_reader(self, backend: "VLLMBackend", request: GenerateRequest) -> EventReader:
        return EventReader(backend.name, request, backend.vocab_size, self._if_refused)

    def _choose_route(self) -> str:
        return self._backend.route or GENERATE

    def _receive_refusal(self, data: bytes) -> None:
        if len(self._refusal) < MAX_REFUSAL_BYTES:
            self._refusal += data

    def _send(self, route: str) -> None:
        self._route = route
        self._refusal = b""
        heeds_priority = Need.PRIORITY in self._backend.capabilities
        body = encode(route, self._request, self._id, heeds_priority=heeds_priority)
        message = self._backend.client.render("POST", route, body)
        self._exchange = self._backend.client.send(message, self)


class ScoredCall(VLLMCall):
    """One answer with log-probabilities.

    It always uses /v1/completions: the other route streams none for the prompt, drops the last of the most probable
    tokens where the chosen token is not among them, and has changed their form within a year.
    """

    def __init__(self, backend: "VLLMBackend", request: GenerateRequest, sink: Sink) -> None:
        self._score_slices: Iterator[list[TokenLogprob]] | None = None  # the scores being delivered
        self._unread: list[bytes] = []  # data that arrived meanwhile
        self._deferred_end: Callable[[], None] | None = None  # the exchange's end, if it came meanwhile
        super().__init__(backend, request, sink)

    def receive(self, data: bytes) -> None:
        if self._score_slices is None:
            self._score_slices = cast("ScoredEventReader", self._answer).scores(data)
            self._deliver_scores()
        else:
            self._unread.append(data)

    def exchange_finished(self) -> None:
        if self._score_slices is None:
            super().exchange_finished()
        else:
            self._deferred_end = super().exchange_finished

    def exchange_failed(self, error: GatewayError) -> None:
        if self._score_slices is None:
            super().exchange_failed(error)
        else:
            self._deferred_end = partial(super().exchange_failed, error)

    def _deliver_scores(self) -> None:
        """Deliver one slice in each turn of the loop, so that others can run; a usual event has one slice."""
        for entries in self._score_slices or ():
            self._sink.scores(entries)  # the sink may cancel inside this call
            if self.is_over:
                break
            if len(entries) == MAX_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._deliver_scores)
                return
        self._score_slices = None
        super().receive(b"")
        self._resume()

    def _resume(self) -> None:
        unread, self._unread = self._unread, []
        if unread:
            self.receive(b"".join(unread))
        elif self._deferred_end is not None and self._score_slices is None:
            end_exchange, self._deferred_end = self._deferred_end, None
            end_exchange()

    def _make_reader(self, backend: "VLLMBackend", request: GenerateRequest) -> ScoredEventReader:
        return ScoredEventReader(backend.name, request, backend.vocab_size, self._if_refused)

    def _choose_route(self) -> str:
        return COMPLETIONS


class VLLMBackend:
    """One vLLM server. `vocab_size`: an upper bound of the ids that it may send."""

    def __init__(self, settings: VLLMSettings, vocab_size: int = LARGEST_VOCABULARY) -> None:
        self.name = settings.name
        self.vocab_size = vocab_size
        self.capabilities = apply_overrides(CAPABILITIES, settings.capabilities)
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        timeout_s = settings.connect_timeout_s
        self.client = Client(settings.url, peer=settings.name, connect_timeout_s=timeout_s, api_key=settings.api_key)
        self.route: str | None = None  # None while it is not known
        self.cache_use = NO_CACHE_USE

    def __repr__(self) -> str:
        return f"<VLLMBackend {self.name} route={self.route} {self.calls!r} {self.client!r}>"

    def start(self, request: GenerateRequest, sink: Sink) -> Call:
        params = request.params
        is_scored = params.logprobs is not None or params.prompt_logprobs is not None
        return (ScoredCall if is_scored else VLLMCall)(self, request, sink)

    async def is_ready(self) -> bool:
        is_healthy = await self.calls.ask_ready(self._probe(), self.renew)
        if not is_healthy:
            # The server may come back as another release with other flags, and comes with an empty cache.
            self.route, self.cache_use = None, NO_CACHE_USE
        return is_healthy

    def renew(self) -> None:
        self.client.renew()

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.client.aclose()

    async def _probe(self) -> bool:
        is_healthy = await self._is_healthy()
        if is_healthy and self.route is None:
            self.route = await self._find_route()
        return is_healthy

    async def _is_healthy(self) -> bool:
        status, _ = await self.client.fetch(self.client.render("GET", "/health"))
        return status == HTTPStatus.OK

    async def _find_route(self) -> str | None:
        """Send an empty request: a server with the route refuses it, and it never reaches the engine."""
        status, _ = await self.client.fetch(self.client.render("POST", GENERATE, b"{}"))
        if status in ROUTE_OFF_STATUSES:
            return COMPLETIONS
        return GENERATE if status in ROUTE_ON_STATUSES else None
