"""Puts the operator's routes and their errors onto a FastAPI app. In: an app and what the routes act on."""

from fastapi import FastAPI

from gateway.access import Access
from gateway.evidence import LatestEvidence
from gateway.metrics import Metrics
from gateway.operator.admin import admin_routes
from gateway.operator.calibrations.registry import Calibrations
from gateway.operator.calibrations.routes import calibration_routes
from gateway.operator.entrance import OperatorEntrance
from gateway.operator.errors import install_error_handlers
from gateway.operator.gauges import RoutingCollector
from gateway.operator.limit import BodyLimit
from gateway.operator.status import status_routes
from gateway.routing import Router

MAX_BODY_BYTES = 64 * 1024  # a policy takes a few hundred


def install_operator(app: FastAPI, router: Router, metrics: Metrics, access: Access, latest: LatestEvidence) -> None:
    """Adds /health, /ready, /version, /metrics and /admin/..., and lets in who may call them."""
    metrics.add(RoutingCollector(router.state))
    app.include_router(status_routes(router, metrics, latest))
    app.include_router(admin_routes(router, latest, access))
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(OperatorEntrance, access=access)


def install_calibrations(app: FastAPI, router: Router, calibrations: Calibrations) -> None:
    """Adds /admin/calibrations/... to an app that has the other routes of the operator."""
    app.include_router(calibration_routes(router, calibrations))
