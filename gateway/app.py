"""The composition root: builds every room from Settings and joins them into one ASGI app.

The only module that knows everyone. Paths under /v1/, /tokenize and /detokenize go to the OpenAI endpoints, all others
to the operator's FastAPI.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from gateway import __version__
from gateway.access import Access, KeyFileUnreadable
from gateway.core import Backend, Need
from gateway.engine_kinds import ENGINE_KINDS
from gateway.evidence import EvidenceCollector, Identity, Place, RoutingView, gathering
from gateway.language import ModelLanguage, UnusableTokenizer
from gateway.metrics import ArrivalsFile, Metrics
from gateway.node import Node
from gateway.operator import ALWAYS, Calibrations, install_calibrations, install_operator
from gateway.routing import Fleet, Router, Shared
from gateway.serving import LOCAL, Endpoints, Entrance, Lane, RelayLane, TokenLane
from gateway.settings import AllowSettings, ModelSettings, Settings


@dataclass(frozen=True, slots=True)
class App:
    """One gateway, built: its two ASGI apps and what they stand on."""

    endpoints: Endpoints
    operator: FastAPI
    router: Router
    metrics: Metrics
    calibrations: Calibrations
    access: Access

    @property
    def handler(self) -> Endpoints:
        """Handles the requests that a ClientConnection passes on without ASGI."""
        return self.endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_inference = scope["type"] == "http" and (scope["path"].startswith("/v1/") or scope["path"] in LOCAL)
        await (self.endpoints if is_inference else self.operator)(scope, receive, send)


def compose(settings: Settings, lanes: Mapping[str, Lane], fleets: Sequence[Fleet], node: Node | None = None) -> App:
    """Joins rooms that exist already; without a `node` this process is the only worker. Raises KeyFileUnreadable."""
    node = node or Node.alone(settings)
    access = Access.open(settings, audits=node.seat.index == 0)
    router = Router(fleets, node.roster, node.policies, node.learned)
    arrivals = ArrivalsFile(settings.arrivals_file, node.salt)
    metrics = Metrics(node.tally, router.flows(), node.roster, arrivals=arrivals)
    # Without the pages that show /openapi.json: they load their scripts from elsewhere, which a node may not reach and
    # which should not run beside /admin.
    operator = FastAPI(title="Crossover: operator's routes", version=__version__, docs_url=None, redoc_url=None)
    metrics.add(EvidenceCollector(node.evidence, _routing_view(router).fingerprint))
    calibrations = Calibrations(settings.runs_folder)
    install_operator(operator, router, metrics, access, node.evidence)
    install_calibrations(operator, router, calibrations)
    endpoints = Endpoints(lanes, router, metrics, settings, Entrance(access, settings.cors_origins, ALWAYS))
    return App(endpoints, operator, router, metrics, calibrations, access)


@asynccontextmanager
async def open_app(settings: Settings, node: Node | None = None) -> AsyncIterator[App]:
    """Yields a running gateway: languages loaded, backends open and probed.

    Raises UnusableTokenizer, KeyFileUnreadable.

    `node`: what this worker shares with others; without it this process is the only one.
    """
    node = node or Node.alone(settings)
    async with AsyncExitStack() as stack:
        lanes: dict[str, Lane] = {}
        fleets = []
        for model in settings.models:
            lanes[model.id] = lane = await _open_lane(model)
            for backend in _connections(lane):
                stack.push_async_callback(backend.aclose)
            shared = Shared(node.ledgers[model.id], node.dry.get(model.id))
            fleets.append(Fleet(model, _backends(lane), settings.probe, shared))
        app = compose(settings, lanes, fleets, node)
        await stack.enter_async_context(app.access.keeping())
        await stack.enter_async_context(app.router.watching())
        await stack.enter_async_context(app.metrics.arrivals.writing())
        await stack.enter_async_context(app.endpoints.mover.running())
        if node.seat.index == 0:  # once for the node: every reading costs the engines a little
            await stack.enter_async_context(app.router.keeping())
            view = _routing_view(app.router)
            await stack.enter_async_context(gathering(settings, ENGINE_KINDS, node.evidence, view))
        yield app


def _routing_view(router: Router) -> RoutingView:
    """Returns the part of routing that the evidence room reads."""

    def count(place: Place) -> int:
        return router.model_state(place.model).backends[place.backend].in_flight

    def identify(place: Place, identity: Identity) -> None:
        router.identify(*place, identity)

    return RoutingView(count, lambda model: router.model_state(model).current.fingerprint, identify)


async def _open_lane(model: ModelSettings) -> Lane:
    """Opens the lane of a model. Raises UnusableTokenizer."""
    servers = {
        name: open_relay(backend)
        for name, backend in model.backends.items()
        if (open_relay := ENGINE_KINDS[backend.kind].open_relay) is not None
    }
    relay = RelayLane(servers, _find_rules(model))
    if model.is_relayed or model.tokenizer is None:
        return relay
    load = partial(
        ModelLanguage.load,
        model.tokenizer,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
    )
    # Off the loop: a tokenizer takes about a second, in which signals and other models' loading must go on.
    language = await asyncio.to_thread(load)
    backends = {
        name: open_tokens(backend, language.vocab_size)
        for name, backend in model.backends.items()
        if (open_tokens := ENGINE_KINDS[backend.kind].open_tokens) is not None
    }
    return TokenLane(language, backends, relay, model.relay_paths, model.reasoning_field)


def _find_rules(model: ModelSettings) -> Mapping[str, AllowSettings | None]:
    """Returns what may go on of a client's own body, for each backend that gets such bodies; None: all of it."""
    return {
        name: backend.allow
        for name, backend in model.backends.items()
        if backend.speaks_openai
        and (model.is_relayed or not backend.takes_tokens or backend.capabilities.get(Need.RELAY, True))
    }


def _backends(lane: Lane) -> Mapping[str, Backend]:
    """Returns the backends by the names that routing uses; those that a policy chooses from come first.

    A backend with both lanes is ready when it can generate: its token lane asks for that.
    """
    if isinstance(lane, RelayLane):
        return lane.backends
    return {**lane.backends, **{name: lane.relay.backends[name] for name in lane.relayed_only}}


def _connections(lane: Lane) -> Iterator[Backend]:
    yield from lane.backends.values()
    if isinstance(lane, TokenLane):
        yield from lane.relay.backends.values()


class Gateway:
    """An ASGI app for any server that speaks the lifespan protocol; with a `node`, one of its workers.

    It opens an App at the server's startup and closes it at shutdown.
    """

    def __init__(self, settings: Settings, node: Node | None = None) -> None:
        self._settings = settings
        self._node = node
        self._app: App | None = None

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("the server sent a request before lifespan.startup had completed")
        return self._app

    @property
    def handler(self) -> Endpoints:
        """Handles the requests that a ClientConnection passes on without ASGI."""
        return self.app.endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self.app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        try:
            async with open_app(self._settings, self._node) as self._app:
                await send({"type": "lifespan.startup.complete"})
                await receive()  # lifespan.shutdown
        except (UnusableTokenizer, KeyFileUnreadable) as exc:
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
        else:
            await send({"type": "lifespan.shutdown.complete"})

    def stop_calibrating(self) -> None:
        """Cancels this worker's calibration, which would keep a server that has to end from coming to rest."""
        if self._app is not None:
            self._app.calibrations.close()

    def stop_answering(self) -> None:
        """Ends every answer under way with an error event, for a server that must go now."""
        if self._app is not None:
            self._app.endpoints.stop()
