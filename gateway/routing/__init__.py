"""Chooses a request's backend and counts the request exactly while it lasts: ledger, policies, readiness, leases."""

from gateway.routing.admission import MustWait
from gateway.routing.demand import BEAT_S
from gateway.routing.dry import DryRun
from gateway.routing.fleet import Fleet, Shared, first_policy
from gateway.routing.learned import LearnedFile
from gateway.routing.ledger import Lease, Ledger
from gateway.routing.moves import Extent, MoveBudget, RetryBudget
from gateway.routing.policy_file import PolicyFile
from gateway.routing.router import Router
from gateway.routing.states import BackendState, DryState, ModelState, PolicyChange, PolicyRecord, WorkerState
from gateway.routing.waiting import Ticket

__all__ = [
    "BEAT_S",
    "BackendState",
    "DryRun",
    "DryState",
    "Extent",
    "Fleet",
    "LearnedFile",
    "Lease",
    "Ledger",
    "ModelState",
    "MoveBudget",
    "MustWait",
    "PolicyChange",
    "PolicyFile",
    "PolicyRecord",
    "RetryBudget",
    "Router",
    "Shared",
    "Ticket",
    "WorkerState",
    "first_policy",
]
