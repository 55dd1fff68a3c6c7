"""GET /health, /ready, /version and /metrics: for load balancers, orchestrators and Prometheus, never behind a key."""

from collections.abc import Mapping

import orjson
from fastapi import APIRouter, Response

from gateway import __version__
from gateway.evidence import LatestEvidence
from gateway.metrics import CONTENT_TYPE, Metrics, observation
from gateway.operator.shapes import ReadyView, VersionView
from gateway.routing import Router

HEALTHY = {"status": "ok"}
ALWAYS: Mapping[bytes, bytes] = {b"/health": orjson.dumps(HEALTHY)}  # answers that a server may give by itself
IS_COMPILED = not observation.__file__.endswith(".py")  # all of the listed modules are compiled, or none


def status_routes(router: Router, metrics: Metrics, latest: LatestEvidence) -> APIRouter:
    routes = APIRouter(tags=["status"])

    @routes.get("/health")
    async def answer_health() -> dict[str, str]:
        """The process is up, whatever the engines are."""
        return HEALTHY

    @routes.get("/ready", responses={503: {"model": ReadyView}})
    async def answer_ready(response: Response) -> ReadyView:
        """200 when every model has at least one backend that can answer, else 503 with the models that have none."""
        view = ReadyView.of(router.state())
        response.status_code = 503 if view.not_ready else 200
        return view

    @routes.get("/version")
    async def answer_version() -> VersionView:
        """The gateway's version, and the identity that each engine reports."""
        return VersionView.of(__version__, IS_COMPILED, router.state(), latest)

    @routes.get("/metrics")
    async def answer_metrics() -> Response:
        """Prometheus exposition text."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return routes
