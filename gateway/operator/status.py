"""GET /health, /ready, /version and /metrics: for load balancers, orchestrators and Prometheus, never behind a key."""

from collections.abc import Mapping

import orjson
from fastapi import APIRouter, Response

from gateway import __version__
from gateway.evidence import Board
from gateway.metrics import CONTENT_TYPE, Metrics, observation
from gateway.operator.shapes import ReadyView, VersionView
from gateway.routing import Router

HEALTHY = {"status": "ok"}
ALWAYS: Mapping[bytes, bytes] = {b"/health": orjson.dumps(HEALTHY)}  # what a server may answer without asking us
IS_COMPILED = not observation.__file__.endswith(".py")  # as one of the compiled modules is, so are all


def status_routes(router: Router, metrics: Metrics, board: Board) -> APIRouter:
    routes = APIRouter(tags=["status"])

    @routes.get("/health")
    async def answer_health() -> dict[str, str]:
        """The process is up; says nothing about the engines."""
        return HEALTHY

    @routes.get("/ready", responses={503: {"model": ReadyView}})
    async def answer_ready(response: Response) -> ReadyView:
        """200 when every model has at least one backend that can answer, else 503 naming the models without."""
        view = ReadyView.of(router.state())
        response.status_code = 503 if view.not_ready else 200
        return view

    @routes.get("/version")
    async def answer_version() -> VersionView:
        """The gateway's version, and what stands behind it as far as the engines say."""
        return VersionView.of(__version__, IS_COMPILED, router.state(), board)

    @routes.get("/metrics")
    async def answer_metrics() -> Response:
        """Prometheus exposition text."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return routes
