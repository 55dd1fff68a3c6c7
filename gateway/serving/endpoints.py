"""The OpenAI endpoints: they find out which kind of work a request is, and start it.

Requests come from our own connections, or from any server over ASGI; both go the same way from there. Knows every
room, but no wire.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.access import Limits
from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.anthropic.messages import MessagesRequest, count_tokens
from gateway.client_http import AsgiExchange, ClientLeft, Exchange, Intake, RequestHead
from gateway.core import NO_NEEDS, GenerateRequest, Need, Needs, RelayRequest
from gateway.errors import GatewayError, InvalidRequest, MethodNotAllowed, PathNotFound, ShuttingDown
from gateway.header import Lines
from gateway.language import ModelLanguage
from gateway.metrics import Metrics
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.errors import OPENAI_ERRORS
from gateway.openai.models import ModelList, unknown_model
from gateway.openai.responses import ResponsesRequest
from gateway.openai.tokenize import detokenize, tokenize
from gateway.routing import RetryBudget, Router
from gateway.serving.cors import Cors
from gateway.serving.dispatch import Desk, Dispatch
from gateway.serving.entrance import Entrance
from gateway.serving.guide_checks import GuideChecks
from gateway.serving.kept_responses import KeptResponses, answer_about
from gateway.serving.mover import Mover
from gateway.serving.offload import Offload, Share, count_units
from gateway.serving.own_headers import RequestIds, read_run
from gateway.serving.relay_lane import RelayLane, RelayWork
from gateway.serving.relay_rules import COUNTED, NOBODY, count_sequences, find_barred
from gateway.serving.reply import Reply
from gateway.serving.restraint import (
    check_model,
    make_plain,
    read_token_limit,
    restrain_body,
    restrain_lines,
    restrain_work,
)
from gateway.serving.sender import Senders
from gateway.serving.token_lane import TokenLane, TokenWork
from gateway.serving.work import LocalAnswer, Understood, Work
from gateway.settings import Settings
from gateway.wire.body import Body, Envelope, parse_body
from gateway.wire.errors import ErrorForm
from gateway.wire.parse import MAX_COMMAS, Unknown, parse_json, read_model
from gateway.wire.translate import translate

Lane: TypeAlias = TokenLane | RelayLane

GENERATIONS: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/responses": ResponsesRequest,
}
LOCAL: Mapping[str, Callable[[dict[str, object], ModelLanguage, Unknown], bytes]] = {
    "/tokenize": tokenize,
    "/detokenize": detokenize,
    "/v1/messages/count_tokens": count_tokens,
}
ERROR_FORMS: Mapping[str, ErrorForm] = {  # where it is not OpenAI's
    "/v1/messages": ANTHROPIC_ERRORS,
    "/v1/messages/count_tokens": ANTHROPIC_ERRORS,
}
MODELS = "/v1/models"
RESPONSE = "/v1/responses"
RESPONSES = f"{RESPONSE}/"
MAX_WAITING = 32  # of the longest bodies
# Parsing, template and tokenizer take about 1 ms for 10 kB; beyond this every other stream's tokens would wait for it.
INLINE_BODY_BYTES = 16 * 1024
CONTENT_TYPE = b"content-type:"
JSON_TYPE = b"content-type: application/json"


class _Message:
    """A request as it arrived. `limits`: of its key. `pin` and `run`: what the head's own fields ask for, once read."""

    __slots__ = ("body", "head", "limits", "pin", "request_id", "run")

    def __init__(self, request_id: str, head: RequestHead, body: bytes, limits: Limits | None) -> None:
        # Written out: compiled, a dataclass is made by an interpreted __init__, which takes ten times as long.
        self.request_id = request_id
        self.head = head
        self.body = body
        self.limits = limits
        self.pin: str | None = None
        self.run: str | None = None


class Endpoints:
    """Answers every path under /v1/, /tokenize and /detokenize: POSTs of our own connections, all requests over ASGI.

    `posts`, `constant_answers`, `check_head` and `intake` are for the connections.
    """

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        router: Router,
        metrics: Metrics,
        settings: Settings,
        entrance: Entrance,
    ) -> None:
        relayed = {path for model in settings.models for path in model.relay_paths}
        self._paths = frozenset({*GENERATIONS, *LOCAL, *relayed})
        self.posts = frozenset(path.encode() for path in self._paths)
        self.constant_answers = entrance.constant_answers
        self.check_head = entrance.check_head
        self.intake = Intake(settings.limits)
        self._lanes = lanes
        lengths = {model: _context_length(lane) for model, lane in lanes.items()}
        self._models = ModelList(lengths, created=int(time.time()))
        self._only_model = next(iter(lanes)) if len(lanes) == 1 else None
        self._router = router
        self._metrics = metrics
        self._streams = settings.streams
        self._unknown = settings.unknown_fields
        self._cors = Cors(settings.cors_origins)
        self._kept = _open_kept(settings)
        self._ids = RequestIds()
        self._offload = Offload(max_waiting=MAX_WAITING * count_units(settings.limits.max_body_bytes))
        self._guides = GuideChecks()
        self._live: set[Dispatch] = set()
        self.retries = RetryBudget(settings.workers)
        self._senders = Senders(settings.trusted_proxies)
        self._desk = Desk(router, metrics, self._live, self.retries, self._senders, entrance.access)
        self.mover = Mover(self._live, router, settings.moves.tokens_per_s, settings.workers)
        self._max_commas = max(MAX_COMMAS, *(length or 0 for length in lengths.values()))

    def handle(self, exchange: Exchange) -> None:
        """Start the request on its way. Needs no task, unless the body is long or a guide has to be tried."""
        head = exchange.head
        errors = ERROR_FORMS.get(head.path, OPENAI_ERRORS)
        reply = Reply(exchange, self._ids.mint(), self._metrics.clock, errors, self._cors.find_lines(head))
        dispatch = Dispatch(self._desk, reply)
        exchange.attach(dispatch)
        limits = None if exchange.caller is None else exchange.caller.limits
        message = _Message(reply.request_id, head, bytes(exchange.body), limits)
        exchange.body = b""
        if exchange.error is not None:
            dispatch.fail(exchange.error)
        else:
            dispatch.start(partial(self._understand, exchange, message))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = AsgiExchange(scope, receive, send, self.intake)
        if exchange.method == "OPTIONS" and (lines := self._cors.find_preflight(exchange.head)) is not None:
            async with exchange.answering():
                exchange.begin(HTTPStatus.OK, (*self._cors.find_lines(exchange.head), *lines), 0)
                exchange.finish()
            return
        exchange.error = self.check_head(exchange)
        if exchange.head.path.startswith(RESPONSES) and exchange.method in {"GET", "DELETE", "POST"}:
            async with exchange.answering():
                self._answer_about_response(exchange)
            return
        try:
            if exchange.error is None:
                self._check_route(exchange)
                await exchange.read_body()
        except ClientLeft:
            return
        except GatewayError as error:
            exchange.error = error
        async with exchange.answering():
            self.handle(exchange)

    def _answer_about_response(self, exchange: AsgiExchange) -> None:
        head = exchange.head
        reply = Reply(exchange, self._ids.mint(), self._metrics.clock, OPENAI_ERRORS, self._cors.find_lines(head))
        try:
            if exchange.error is not None:
                raise exchange.error
            if self._kept is None:
                raise InvalidRequest("This gateway keeps no responses ('responses.keep' in its configuration).")
            query = head.target.partition(b"?")[2].decode("latin-1")
            reply.send_json(answer_about(self._kept, exchange.method, head.path.removeprefix(RESPONSES), query))
        except GatewayError as error:
            self._metrics.refuse(error)
            reply.send_error(error)

    def stop(self) -> None:
        """End every answer under way with an error, because the gateway is about to stop."""
        for dispatch in tuple(self._live):
            dispatch.fail(ShuttingDown("The gateway is shutting down."))

    def _check_route(self, exchange: AsgiExchange) -> None:
        path = exchange.head.path
        if path in self._paths:
            method = "POST"
        elif path == MODELS or path.startswith(MODELS + "/"):
            method = "GET"
        else:
            raise PathNotFound(_describe_unknown(exchange.method, path[:200]))
        if exchange.method != method:
            raise MethodNotAllowed(method, f"{path[:200]} takes {method} requests only.")

    def _understand(self, exchange: Exchange, message: _Message) -> Understood:
        """Returns what the request asks for. Raises GatewayError."""
        path = message.head.path
        if path.startswith(MODELS):
            return self._describe_models(path, message.limits)
        if len(message.body) > INLINE_BODY_BYTES:
            return exchange.spawn(self._read_in_thread(exchange, message))
        return self._check_guide(exchange, self._read(message))

    def _describe_models(self, path: str, limits: Limits | None) -> LocalAnswer:
        """Returns the answer about one model, or all that may be asked for. Raises ModelNotFound."""
        model, allows = path.removeprefix(MODELS).removeprefix("/"), (limits or Limits()).allows
        return LocalAnswer(self._models.encode_one(model, allows) if model else self._models.encode_all(allows))

    async def _read_in_thread(self, exchange: Exchange, message: _Message) -> Understood:
        def read() -> Work | LocalAnswer:
            if exchange.has_left:
                raise ClientLeft
            return self._read(message)

        share = Share(self._senders.name(exchange), count_units(len(message.body)))
        return self._check_guide(exchange, await self._offload.run(share, read))

    def _check_guide(self, exchange: Exchange, work: Work | LocalAnswer) -> Understood:
        if isinstance(work, TokenWork) and (guided := work.generations.guided) is not None:
            return exchange.spawn(self._try_guide(exchange, work, guided))
        return work

    async def _try_guide(self, exchange: Exchange, work: TokenWork, guided: GenerateRequest) -> Understood:
        await self._guides.check(guided, self._senders.name(exchange), lambda: exchange.has_left)
        return work

    def _read(self, message: _Message) -> Work | LocalAnswer:
        """Parses the request. Raises InvalidRequest, ModelNotFound."""
        document = parse_json(message.body, self._max_commas)
        path, head = message.head.path, message.head
        if path == RESPONSE and self._only_model and document.get("model") is None:
            document["model"] = self._only_model  # which Open Responses lets a request leave out
        if (limits := message.limits) is not None:
            check_model(limits, document)
        model = document.get("model")
        lane = self._lanes.get(model) if isinstance(model, str) else None
        if head.has_own:
            message.pin, message.run = head.field(b"x-crossover-pin"), read_run(head)
        if isinstance(lane, RelayLane):
            return self._relay(lane, message, document)
        body = parse_body(GENERATIONS[path], document, self._unknown) if path in GENERATIONS else None
        if lane is None:
            raise unknown_model(read_model(document))
        if path in LOCAL:
            return LocalAnswer(LOCAL[path](document, lane.language, self._unknown))
        needs = _find_relay_needs(path, body, lane, message.pin)
        if body is None or needs is not None:
            return self._relay(lane.relay, message, document, needs)
        now, keeper = int(time.time()), self._kept
        envelope = Envelope(message.request_id, now, message.pin, message.run, lane.reasoning_field, keeper)
        generations = translate(body.resolve(keeper), lane.language, envelope)
        work = TokenWork(generations, lane, self._streams, self._metrics)
        return work if limits is None else restrain_work(work, body, limits)

    def _relay(
        self, lane: RelayLane, message: _Message, document: dict[str, object], needs: Needs | None = None
    ) -> RelayWork:
        """Returns the relay lane's work. Raises InvalidRequest. `needs`: what the token lane could not serve."""
        head, limits = message.head, message.limits
        body, target, lines, priority, longest = message.body, head.target, head.lines, 0, None
        is_counted, has_rules = not document.keys().isdisjoint(COUNTED), any(lane.rules.values())
        sequences = count_sequences(document) if is_counted else 1
        barred = find_barred(document, head.path, lane.rules, message.pin) if has_rules else NOBODY
        if limits is not None or is_counted:
            body = make_plain(body, document)
        if limits is not None or has_rules:  # a server may take it for what a body may not have
            target = target.partition(b"?")[0]
        if limits is not None:
            longest, lines = read_token_limit(document), restrain_lines(lines, limits)
            rules = [allow for name, allow in lane.rules.items() if allow is not None and name not in barred]
            takes = all("priority" in allow.fields for allow in rules)
            body, priority = restrain_body(body, document, limits, takes_priority=takes)
        request = RelayRequest(
            message.request_id,
            str(document["model"]),
            target,
            lines if needs is None else _as_json(lines),
            body,
            message.pin,
            message.run,
            needs or NO_NEEDS,
            sequences,
            barred,
            priority=priority,
        )
        return RelayWork(request, lane, self._metrics, longest)


def _open_kept(settings: Settings) -> KeptResponses | None:
    if settings.responses.keep == "off":
        return None
    return KeptResponses(settings.responses, settings.state_folder if settings.responses.keep == "file" else None)


def _context_length(lane: Lane) -> int | None:
    return lane.language.context_length if isinstance(lane, TokenLane) else None


def _find_relay_needs(path: str, body: Body | None, lane: TokenLane, pin: str | None) -> Needs | None:
    """Returns what a request needs that the token lane cannot serve; None if it can. Raises InvalidRequest."""
    if body is None:
        if path not in lane.relay_paths:
            raise InvalidRequest(f"This model is not served by {path}.", param="model")
        return {Need.RELAY: "model"}
    if body.relay_field is not None:
        return {Need.RELAY: body.relay_field}
    return NO_NEEDS if pin in lane.relayed_only else None


def _describe_unknown(method: str, path: str) -> str:
    unknown = f"Unknown request URL: {method} {path}."
    if method != "POST" or not path.startswith("/v1/"):
        return unknown
    return f"{unknown} If an engine has this endpoint, the gateway sends it on once 'relay_paths' of a model lists it."


def _as_json(lines: Lines) -> Lines:
    """Sets the content-type to JSON, whatever the client called its body: engines insist on this type."""
    return (*(line for line in lines if not line.startswith(CONTENT_TYPE)), JSON_TYPE)
