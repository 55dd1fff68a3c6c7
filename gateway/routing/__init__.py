"""Which backend gets a request, counted exactly while it lasts: ledger, policies, readiness, leases."""

from gateway.routing.fleet import Fleet
from gateway.routing.router import Lease, Router
from gateway.routing.states import BackendState, ModelState, PolicyChange, PolicyRecord

__all__ = ["BackendState", "Fleet", "Lease", "ModelState", "PolicyChange", "PolicyRecord", "Router"]
