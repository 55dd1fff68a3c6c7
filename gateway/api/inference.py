"""The OpenAI endpoints as one raw ASGI app: generation on either lane, and the list of models.

`_place` is the spine: lease a route, let the lane answer, try once elsewhere. Knows every room's door, no wire.
"""

import logging
import time
from collections.abc import Mapping
from typing import Protocol, TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.api.ask import translate
from gateway.api.chat import ChatCompletionRequest
from gateway.api.client import Client, ClientLeft
from gateway.api.completions import CompletionRequest
from gateway.api.envelope import Envelope, RequestIds, read_pin, read_run
from gateway.api.errors import InternalError, MethodNotAllowed, PathNotFound, ShuttingDown
from gateway.api.generation import Generation
from gateway.api.models import ModelList, unknown_model
from gateway.api.offload import Offload
from gateway.api.parse import parse_body, parse_json, read_model
from gateway.api.relay_lane import RelayLane, RelayWork
from gateway.api.reply import Reply
from gateway.api.token_lane import TokenLane, TokenWork
from gateway.core import Placeable, RelayRequest, Route
from gateway.errors import BackendUnavailable, GatewayError, InvalidRequest
from gateway.metrics import Metrics
from gateway.routing import Router
from gateway.settings import Settings

logger = logging.getLogger(__name__)

Lane: TypeAlias = TokenLane | RelayLane

BODIES: Mapping[str, type[Generation]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
RELAYED_ONLY = frozenset({"/v1/embeddings"})
MODELS = "/v1/models"
METHODS = {**dict.fromkeys((*BODIES, *RELAYED_ONLY), "POST"), MODELS: "GET"}
# Parsing, template and tokenizer take about 1 ms for 10 kB; beyond this every other stream's tokens would wait for it.
INLINE_BODY_BYTES = 16 * 1024


class Work(Protocol):
    """What a lane makes of a request."""

    @property
    def request(self) -> Placeable: ...

    async def attempt(self, route: Route, reply: Reply, metrics: Metrics) -> None:
        """Answer by the backend of `route`; returns when the answer is complete. Raises GatewayError, ClientLeft.

        Holds an engine call for as long as the answer lasts; leaving, for any reason, gives it up.
        """
        ...


class Inference:
    """`__call__` is the ASGI app; it answers every path under /v1/."""

    def __init__(
        self, lanes: Mapping[str, Lane], models: ModelList, router: Router, metrics: Metrics, settings: Settings
    ) -> None:
        self._lanes = lanes
        self._models = models
        self._router = router
        self._metrics = metrics
        self._limits = settings.limits
        self._operator_key = settings.operator_key
        self._ids = RequestIds()
        self._offload = Offload()
        self._replies: set[Reply] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send, self._limits)
        reply = Reply(self._ids.mint(), self._metrics.clock)
        try:
            self._check_route(client)
            body = client.whole_body()
            if body is None:
                body = await client.read_body()
        except ClientLeft:
            return
        except GatewayError as error:
            async with client.attached(reply):
                self._refuse(reply, error)
            return
        if client.attach(reply):
            await self._answer(client, body, reply)
            return
        async with client.attached(reply):
            await self._answer(client, body, reply)

    def _check_route(self, client: Client) -> None:
        method = METHODS.get(client.path) or ("GET" if client.path.startswith(MODELS + "/") else None)
        if method is None:
            raise PathNotFound(f"Unknown request URL: {client.method} {client.path[:200]}.")
        if client.method != method:
            raise MethodNotAllowed(method, f"{client.path[:200]} takes {method} requests only.")

    async def _answer(self, client: Client, body: bytes, reply: Reply) -> None:
        """Whatever happens is said to the client here; nothing is raised."""
        self._replies.add(reply)
        try:
            if client.method == "GET":
                self._show_models(client, reply)
            elif len(body) <= INLINE_BODY_BYTES:
                await self._place(self._understand(client, body, reply), reply)
            else:
                await self._place(await self._offload.run(self._understand, client, body, reply), reply)
        except ClientLeft:
            pass
        except GatewayError as error:
            self._refuse(reply, error)
        # Outermost edge: whatever goes wrong in one request, its client hears of it and the others do not.
        except Exception:
            logger.exception("request %s failed", reply.request_id)
            self._refuse(reply, InternalError("The gateway failed; see its log for this request's id."))
        finally:
            self._replies.discard(reply)

    def _show_models(self, client: Client, reply: Reply) -> None:
        model = client.path.removeprefix(MODELS).removeprefix("/")
        reply.send_json(self._models.encode_one(model) if model else self._models.encode_all())

    def _understand(self, client: Client, raw: bytes, reply: Reply) -> Work:
        """Raises InvalidRequest, ModelNotFound, Unauthorized."""
        document = parse_json(raw)
        lane = self._lanes.get(str(document.get("model")))
        pin, run = read_pin(client, self._operator_key), read_run(client)
        if isinstance(lane, RelayLane):
            model = read_model(document)
            request = RelayRequest(reply.request_id, model, client.target, client.fields, raw, pin, run)
            return RelayWork(request, lane)
        if client.path in RELAYED_ONLY:
            raise _not_served(client.path, read_model(document), lane)
        body = parse_body(BODIES[client.path], document)
        if lane is None:
            raise unknown_model(body.model)
        ask = translate(body, lane.language, Envelope(reply.request_id, int(time.time()), pin, run))
        return TokenWork(ask.request, ask, lane)

    async def _place(self, work: Work, reply: Reply) -> None:
        """The spine: a lease for as long as the answer lasts; one retry, elsewhere, while nothing has been sent."""
        request = work.request
        avoid: frozenset[str] = frozenset()
        while True:
            with self._router.lease(request, avoid) as lease:
                route = lease.route
                reply.open(route)
                try:
                    await work.attempt(route, reply, self._metrics)
                except GatewayError as error:
                    if error.is_down:
                        self._router.mark_unavailable(route.backend, request.model)
                    if avoid or request.pin is not None or not isinstance(error, BackendUnavailable):
                        raise
                    avoid = frozenset({route.backend})
                else:
                    return

    def give_up(self) -> None:
        """End every answer under way with an error, because the gateway is about to stop."""
        for reply in self._replies:
            reply.settle(ShuttingDown("The gateway is shutting down."))

    def _refuse(self, reply: Reply, error: GatewayError) -> None:
        if reply.backend is None:
            self._metrics.refuse(error)
        reply.refuse(error)


def _not_served(path: str, model: str, lane: Lane | None) -> GatewayError:
    if lane is None:
        return unknown_model(model)
    return InvalidRequest(f"The model '{model[:100]}' is not served by {path}.", param="model")
