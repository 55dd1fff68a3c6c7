"""Puts the operator's routes and their errors onto a FastAPI app. In: an app and what the routes act on."""

from fastapi import Depends, FastAPI

from gateway.evidence import LatestEvidence
from gateway.metrics import Metrics
from gateway.operator.admin import admin_routes
from gateway.operator.calibrations.registry import Calibrations
from gateway.operator.calibrations.routes import calibration_routes
from gateway.operator.errors import install_error_handlers
from gateway.operator.key import OperatorKey
from gateway.operator.limit import BodyLimit
from gateway.operator.status import status_routes
from gateway.routing import Router

MAX_BODY_BYTES = 64 * 1024  # a policy takes a few hundred


def install_operator(
    app: FastAPI, router: Router, metrics: Metrics, operator_key: str | None, latest: LatestEvidence | None = None
) -> None:
    """Adds /health, /ready, /version, /metrics, and /admin/..., the last behind the operator key if there is one."""
    latest = latest or LatestEvidence.alone(())  # without one, nothing is known of the engines
    app.include_router(status_routes(router, metrics, latest))
    app.include_router(admin_routes(router, latest), dependencies=[Depends(OperatorKey(operator_key))])
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)


def install_calibrations(app: FastAPI, router: Router, calibrations: Calibrations) -> None:
    """Adds /admin/calibrations/... to an app that has the other routes of the operator."""
    key = Depends(OperatorKey(calibrations.operator_key))
    app.include_router(calibration_routes(router, calibrations), dependencies=[key])
