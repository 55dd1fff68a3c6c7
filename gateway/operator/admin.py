"""/admin/policy, /admin/backends/NAME, /admin/state and /admin/keys.

In: the operator's JSON. Out: routing's state after it, or keys with what they use.
"""

import asyncio
import logging
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway import __version__
from gateway.access import Access
from gateway.evidence import LatestEvidence
from gateway.operator.entrance import name_caller
from gateway.operator.shapes import (
    DrainBody,
    KeyView,
    ModelView,
    PolicyBody,
    PolicyView,
    RestartView,
    StateView,
    WorkerView,
)
from gateway.routing import Router

audit = logging.getLogger("gateway.audit")


def admin_routes(router: Router, latest: LatestEvidence, access: Access) -> APIRouter:
    routes = APIRouter(prefix="/admin", tags=["admin"])

    @routes.get("/state")
    async def read_state() -> StateView:
        """Every worker, every model with its policy and what is in flight, and the kinds of policies there are."""
        states, standing = router.state(), router.standing()
        return StateView(
            version=__version__,
            generation=standing.generation,
            restart=None if standing.last is None else RestartView.model_validate(standing.last),
            answered_by=router.worker,
            workers=[WorkerView.model_validate(worker) for worker in router.workers(states)],
            models=[ModelView.of(state, latest) for state in states],
        )

    @routes.get("/keys")
    async def list_keys() -> list[KeyView]:
        """Every key there ever was, with its limits and what is in use of them now. None can be used from there."""
        return [KeyView.of(key, access.meter) for key in access.keyring.keys]

    @routes.get("/policy")
    async def read_policy(model: Annotated[str | None, Query()] = None) -> PolicyView:
        """The policy in force for a model; `model` may be left out when there is only one."""
        state = router.model_state(model)
        return PolicyView.of(state.model, state.current, latest)

    @routes.put("/policy")
    async def replace_policy(body: PolicyBody, request: Request) -> PolicyView:
        """Replace the policy from the next request on, and for the next start; nothing in flight is dropped."""
        who = name_caller(request)
        state = router.set_policy(body.change(who))
        await asyncio.to_thread(router.keep_policy, state)
        current = state.current
        audit.info("policy of %s is version %d, by %s: %s", state.model, current.version, who, current.policy)
        return PolicyView.of(state.model, state.current, latest)

    @routes.put("/backends/{backend}")
    async def drain_backend(backend: str, body: DrainBody, request: Request) -> ModelView:
        """Empty a backend, so that it can be stopped, or use it again. Its answers go on elsewhere, where they may."""
        state = router.drain(backend, body.draining, body.model, force=body.force)
        what = "drained" if body.draining else "used again"
        audit.info("backend %s of %s is %s, by %s", backend, state.model, what, name_caller(request))
        return ModelView.of(state, latest)

    return routes
