"""The OpenAI endpoints: generation on either lane, and the list of models.

Requests come from our own Downstream as Turns, or from any server over ASGI; both go the same way from there. Knows
every room's door, no wire.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.api.allowed import find_way
from gateway.api.ask import Ask, translate
from gateway.api.chat import ChatCompletionRequest
from gateway.api.client import Client, ClientLeft
from gateway.api.completions import CompletionRequest
from gateway.api.desk import Desk
from gateway.api.envelope import Envelope, RequestIds, read_pin, read_run
from gateway.api.errors import OUR_FAULT, InternalError, MethodNotAllowed, PathNotFound, ShuttingDown
from gateway.api.generation import Generation
from gateway.api.guide_checks import GuideChecks
from gateway.api.intake import Intake
from gateway.api.models import ModelList, unknown_model
from gateway.api.offload import Offload, Share, count_units
from gateway.api.parse import MOST_COMMAS, parse_body, parse_json, read_model
from gateway.api.relay_lane import Relaying, RelayLane
from gateway.api.reply import Reply
from gateway.api.request import Request
from gateway.api.token_lane import Generating, TokenLane
from gateway.api.tokenize import detokenize, tokenize
from gateway.api.turn import Turn
from gateway.core import NO_NEEDS, Need, Needs, RelayRequest
from gateway.errors import GatewayError, InvalidRequest
from gateway.language import ModelLanguage
from gateway.settings import Settings

logger = logging.getLogger(__name__)

Lane: TypeAlias = TokenLane | RelayLane

BODIES: Mapping[str, type[Generation]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
TEXTS: Mapping[str, Callable[[dict[str, object], ModelLanguage], bytes]] = {
    "/tokenize": tokenize,
    "/detokenize": detokenize,
}
MODELS = "/v1/models"
MOST_WAITING = 32  # of the longest bodies
# Parsing, template and tokenizer take about 1 ms for 10 kB; beyond this every other stream's tokens would wait for it.
INLINE_BODY_BYTES = 16 * 1024
CONTENT_TYPE = b"content-type:"
JSON_TYPE = b"content-type: application/json"  # whatever the client called it: engines insist on it


@dataclass(frozen=True, slots=True)
class Said:
    """An answer that no engine is needed for."""

    body: bytes


Work: TypeAlias = Ask | RelayRequest | Said


class Inference:
    """Answers every path under /v1/, /tokenize and /detokenize: as a Downstream's handler its POSTs, over ASGI all.

    `takes` and `says` are what it takes past ASGI; the latter is the operator's.
    """

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        models: ModelList,
        desk: Desk,
        settings: Settings,
        says: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> None:
        relayed = {path for model in settings.models for path in model.relay_paths}
        self._posts = frozenset({*BODIES, *TEXTS, *relayed})
        self.takes = frozenset(path.encode() for path in self._posts)
        self.says = says
        self.intake = Intake(settings.limits)
        self._lanes = lanes
        self._models = models
        self._desk = desk
        self._clock = desk.metrics.clock
        self._operator_key = settings.operator_key
        self._ids = RequestIds()
        self._offload = Offload(most_waiting=MOST_WAITING * count_units(settings.limits.max_body_bytes))
        self._guides = GuideChecks()
        self._replies: set[Reply] = set()
        self._most_commas = max(MOST_COMMAS, *map(_context_length, lanes.values()))

    def take(self, turn: Turn) -> None:
        """A request whose body is there. It needs no task, unless it is long or its guide has to be checked."""
        reply = self._make_reply()
        reply.outlet = turn
        turn.attach(reply)
        raw, turn.body = bytes(turn.body), b""
        if turn.error is not None:
            self._end(reply, turn.error)
        elif len(raw) > INLINE_BODY_BYTES:
            turn.spawn(self._answer(turn.request, raw, reply))
        else:
            self._begin(turn, raw, reply)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send, self.intake)
        raw, failure = b"", None
        try:
            self._check_route(client)
            raw = await client.read_body()
        except ClientLeft:
            return
        except GatewayError as error:
            failure = error
        reply = self._make_reply()
        async with client.attached(reply):
            if failure is not None:
                self._end(reply, failure)
            else:
                await self._answer(client.request, raw, reply)

    def give_up(self) -> None:
        """End every answer under way with an error, because the gateway is about to stop."""
        for reply in tuple(self._replies):
            reply.give_up(ShuttingDown("The gateway is shutting down."))

    def _make_reply(self) -> Reply:
        reply = Reply(self._ids.mint(), self._clock)
        self._replies.add(reply)
        return reply

    def _check_route(self, client: Client) -> None:
        path = client.request.path
        if path in self._posts:
            method = "POST"
        elif path == MODELS or path.startswith(MODELS + "/"):
            method = "GET"
        else:
            raise PathNotFound(f"Unknown request URL: {client.method} {path[:200]}.")
        if client.method != method:
            raise MethodNotAllowed(method, f"{path[:200]} takes {method} requests only.")

    def _begin(self, turn: Turn, raw: bytes, reply: Reply) -> None:
        try:
            work = self._understand(turn.request, raw, reply)
            if isinstance(work, RelayRequest):
                Relaying(work, self._relay_lane(work), reply, self._desk, partial(self._end, reply)).start()
            elif isinstance(work, Said):
                reply.send_json(work.body)
                self._end(reply, None)
            elif work.request.params.guide is not None:
                turn.spawn(self._answer(turn.request, raw, reply, work))
            else:
                Generating(work, self._token_lane(work), reply, self._desk, partial(self._end, reply)).start()
        except GatewayError as error:
            self._end(reply, error)
        # Outermost edge: whatever goes wrong in one request, its client hears of it and the others do not.
        except Exception:
            logger.exception("request %s failed", reply.request_id)
            self._end(reply, InternalError(OUR_FAULT))

    async def _answer(self, request: Request, raw: bytes, reply: Reply, work: Work | None = None) -> None:
        """In a task, because it takes time to understand, or to wait, or an ASGI server waits for it."""
        try:
            if request.path.startswith(MODELS):
                self._show_models(request.path, reply)
            else:
                await self._work_on(work or await self._understand_somewhere(request, raw, reply), reply)
        except (GatewayError, ClientLeft) as error:
            self._end(reply, error)
        # Outermost edge, as in _begin.
        except Exception:
            logger.exception("request %s failed", reply.request_id)
            self._end(reply, InternalError(OUR_FAULT))
        finally:
            self._replies.discard(reply)

    async def _work_on(self, work: Work, reply: Reply) -> None:
        if isinstance(work, RelayRequest):
            await self._relay_lane(work).answer(work, reply, self._desk)
        elif isinstance(work, Ask):
            if work.request.params.guide is not None:
                await self._guides.check(work.request, reply.outlet.client, lambda: reply.outlet.has_left)
            await self._token_lane(work).answer(work, reply, self._desk)
        else:
            reply.send_json(work.body)

    async def _understand_somewhere(self, request: Request, raw: bytes, reply: Reply) -> Work:
        if len(raw) <= INLINE_BODY_BYTES:
            return self._understand(request, raw, reply)
        share = Share(reply.outlet.client, count_units(len(raw)))
        return await self._offload.run(share, self._understand_in_turn, request, raw, reply)

    def _understand_in_turn(self, request: Request, raw: bytes, reply: Reply) -> Work:
        """On a thread. Raises ClientLeft, and what `_understand` does."""
        if reply.outlet.has_left:
            raise ClientLeft
        return self._understand(request, raw, reply)

    def _understand(self, request: Request, raw: bytes, reply: Reply) -> Work:
        """Raises InvalidRequest, ModelNotFound, Unauthorized."""
        document = parse_json(raw, self._most_commas)
        named = document.get("model")
        model = named if isinstance(named, str) else ""  # no lane's; who reads it below says what is wrong with it
        lane = self._lanes.get(model)
        pin = run = None
        if request.has_own:
            pin, run = read_pin(request, self._operator_key), read_run(request)
        path = request.path
        if isinstance(lane, RelayLane):
            sequences, barred = find_way(document, path, lane.rules, pin)
            lines, target = request.lines, request.target
            return RelayRequest(reply.request_id, model, target, lines, raw, pin, run, NO_NEEDS, sequences, barred)
        body = parse_body(BODIES[path], document) if path in BODIES else None
        if lane is None:
            raise unknown_model(read_model(document))
        if path in TEXTS:
            return Said(TEXTS[path](document, lane.language))
        needs = _find_relay_needs(path, body, lane, pin)
        if body is None or needs is not None:
            sequences, barred = find_way(document, path, lane.relay.rules, pin)
            told = needs or NO_NEEDS
            lines = (*(line for line in request.lines if not line.startswith(CONTENT_TYPE)), JSON_TYPE)
            return RelayRequest(reply.request_id, model, request.target, lines, raw, pin, run, told, sequences, barred)
        envelope = Envelope(reply.request_id, int(time.time()), pin, run)
        return translate(body, lane.language, envelope, lane.reasoning_field)

    def _relay_lane(self, work: RelayRequest) -> RelayLane:
        lane = self._lanes[work.model]
        return lane if isinstance(lane, RelayLane) else lane.relay

    def _token_lane(self, work: Ask) -> TokenLane:
        lane = self._lanes[work.request.model]
        assert isinstance(lane, TokenLane)
        return lane

    def _show_models(self, path: str, reply: Reply) -> None:
        """Raises ModelNotFound."""
        model = path.removeprefix(MODELS).removeprefix("/")
        reply.send_json(self._models.encode_one(model) if model else self._models.encode_all())

    def _end(self, reply: Reply, error: Exception | None) -> None:
        """The one place where an error that the client has not heard of is told."""
        self._replies.discard(reply)
        if isinstance(error, GatewayError):
            if not reply.was_placed:
                self._desk.metrics.refuse(error)
            reply.refuse(error)


def _context_length(lane: Lane) -> int:
    return lane.language.context_length if isinstance(lane, TokenLane) else 0


def _find_relay_needs(path: str, body: Generation | None, lane: TokenLane, pin: str | None) -> Needs | None:
    """What a request needs that the token lane cannot serve; None if it can. Raises InvalidRequest."""
    if body is None:
        if path not in lane.relay_paths:
            raise InvalidRequest(f"This model is not served by {path}.", param="model")
        return {Need.RELAY: "model"}
    if body.relay_field is not None:
        return {Need.RELAY: body.relay_field}
    return NO_NEEDS if pin in lane.relayed_only else None
