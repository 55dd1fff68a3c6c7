"""Chooses a request's backend and counts the request exactly while it lasts: ledger, policies, readiness, leases."""

from gateway.routing.fleet import Fleet, first_policy
from gateway.routing.ledger import Lease, Ledger, LedgerSpans
from gateway.routing.router import Router
from gateway.routing.states import BackendState, ModelState, PolicyChange, PolicyRecord, WorkerState

__all__ = [
    "BackendState",
    "Fleet",
    "Lease",
    "Ledger",
    "LedgerSpans",
    "ModelState",
    "PolicyChange",
    "PolicyRecord",
    "Router",
    "WorkerState",
    "first_policy",
]
