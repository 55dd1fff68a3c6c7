"""The OpenAI endpoints as one raw ASGI app: chat and text completions, and the list of models.

`_answer` is the spine: lease a route, start the engine call, let it feed the reply. Knows every room's door, no wire.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from gateway.api.ask import Ask, translate
from gateway.api.chat import ChatCompletionRequest
from gateway.api.client import Client, ClientLeft
from gateway.api.completions import CompletionRequest
from gateway.api.envelope import Envelope, mint_request_id, read_pin, read_run
from gateway.api.errors import InternalError, MethodNotAllowed, PathNotFound, ShuttingDown
from gateway.api.generation import Generation
from gateway.api.models import ModelList
from gateway.api.parse import parse_body
from gateway.api.reply import Reply
from gateway.core import FinishReason
from gateway.errors import BackendUnavailable, GatewayError
from gateway.metrics import Metrics
from gateway.routing import Router
from gateway.settings import Settings

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Client, Reply], Awaitable[None]]

BODIES: Mapping[str, type[Generation]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
MODELS = "/v1/models"
# Parsing, template and tokenizer take about 1 ms for 10 kB; beyond this every other stream's tokens would wait for it.
INLINE_BODY_BYTES = 16 * 1024


class Inference:
    """`__call__` is the ASGI app; it answers every path under /v1/."""

    def __init__(self, models: ModelList, router: Router, metrics: Metrics, settings: Settings) -> None:
        self._models = models
        self._router = router
        self._metrics = metrics
        self._limits = settings.limits
        self._operator_key = settings.operator_key
        self._replies: set[Reply] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(scope, receive, send, self._limits)
        reply = Reply(client, mint_request_id())
        try:
            await self._find_handler(client)(client, reply)
        except* ClientLeft:
            pass
        except* GatewayError as errors:
            await self._refuse(reply, _only(errors))
        # Outermost edge: whatever goes wrong in one request, its client hears of it and the others do not.
        except* Exception:
            logger.exception("request %s failed", reply.request_id)
            await self._refuse(reply, InternalError("The gateway failed; see its log for this request's id."))

    def _find_handler(self, client: Client) -> Handler:
        if client.path in BODIES:
            return self._take("POST", client, self._generate)
        if client.path == MODELS or client.path.startswith(MODELS + "/"):
            return self._take("GET", client, self._show_models)
        raise PathNotFound(f"Unknown request URL: {client.method} {client.path[:200]}.")

    def _take(self, method: str, client: Client, handler: Handler) -> Handler:
        if client.method != method:
            raise MethodNotAllowed(method, f"{client.path[:200]} takes {method} requests only.")
        return handler

    async def _show_models(self, client: Client, reply: Reply) -> None:
        model = client.path.removeprefix(MODELS).removeprefix("/")
        await reply.send_json(self._models.encode_one(model) if model else self._models.encode_all())

    async def _generate(self, client: Client, reply: Reply) -> None:
        envelope = Envelope(
            request_id=reply.request_id,
            created=int(time.time()),
            arrived=self._metrics.clock(),
            pin=read_pin(client, self._operator_key),
            run=read_run(client),
        )
        ask = await self._read(client, envelope)
        self._replies.add(reply)
        try:
            async with asyncio.TaskGroup() as tasks:
                watcher = tasks.create_task(client.watch())  # when it raises, the answer unwinds
                await self._answer_here_or_there(ask, reply)
                watcher.cancel()
        finally:
            self._replies.discard(reply)

    async def _read(self, client: Client, envelope: Envelope) -> Ask:
        body_type, raw = BODIES[client.path], await client.read_body()
        if len(raw) <= INLINE_BODY_BYTES:
            return self._understand(body_type, raw, envelope)
        return await asyncio.to_thread(self._understand, body_type, raw, envelope)

    def _understand(self, body_type: type[Generation], raw: bytes, envelope: Envelope) -> Ask:
        body = parse_body(body_type, raw)
        return translate(body, self._models.find(body.model), envelope)

    async def _answer_here_or_there(self, ask: Ask, reply: Reply) -> None:
        """The only retry: once, on another backend, and only while nothing of the answer exists."""
        try:
            await self._answer(ask, reply)
        except BackendUnavailable:
            failed = reply.backend
            if failed is None or ask.request.pin is not None:
                raise
            await self._answer(ask, reply, avoid=frozenset({failed}))

    async def _answer(self, ask: Ask, reply: Reply, avoid: frozenset[str] = frozenset()) -> None:
        """Hold a lease and an engine call for as long as the reply lasts; leaving, for any reason, gives both up."""
        with self._router.lease(ask.request, avoid) as lease:
            sink = reply.open(ask, lease.route)
            with self._metrics.observe(ask.request, lease.route, sink, ask.arrived) as observation:
                call = lease.backend.start(ask.request, observation)
                try:
                    await reply.deliver(at_end=call.cancel)
                    observation.end(FinishReason.STOP)  # unless the engine has said how it ended, a stop string did
                except GatewayError as error:
                    observation.end(error.code)
                    if error.is_down:
                        self._router.mark_unavailable(lease.route.backend, ask.request.model)
                    raise
                finally:
                    call.cancel()

    def give_up(self) -> None:
        """End every answer under way with an error, because the gateway is about to stop."""
        for reply in self._replies:
            reply.give_up(ShuttingDown("The gateway is shutting down."))

    async def _refuse(self, reply: Reply, error: GatewayError) -> None:
        if reply.backend is None:
            self._metrics.refuse(error)
        with suppress(ClientLeft):
            await reply.refuse(error)


def _only(errors: ExceptionGroup[GatewayError]) -> GatewayError:
    """The one error inside what a TaskGroup and `except*` wrap around it."""
    first = errors.exceptions[0]
    return _only(first) if isinstance(first, ExceptionGroup) else first
