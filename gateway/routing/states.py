"""The state of routing as other rooms read it, and the change of policy that an operator asks for: values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core import Need, Policy

Engine: TypeAlias = Mapping[str, str | int]  # what identifies one
Fingerprint: TypeAlias = Mapping[str, Engine]  # the engines that a policy was measured on, or learned of, by backend


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A new policy for one model; `model` None is the only one there is. Refused unless `version` is still in force.

    `fingerprint`: that of the engines it was measured on; None for a policy that was not measured.
    """

    policy: Policy
    by: str
    model: str | None = None
    calibration: str | None = None
    fingerprint: Fingerprint | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """One entry of a model's policy history; `policy` is None for a model with one backend, `at` is Unix seconds."""

    version: int
    policy: Policy | None
    by: str
    at: float
    calibration: str | None = None
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class BackendState:
    """A backend. Over all workers, `in_flight` counts every lease's sequences, `steering` those the policy decides by.

    `is_ready`: this worker finds it ready and no other worker doubts it. `is_ejected`: most of this worker's requests
    failed there, and it gets none, or some on trial. `is_draining`: an operator wants it empty.
    `capabilities`: the needs that it meets, as far as this worker knows. `readings`: what the policy has
    found out about it, by name. `cached`: the part of recent prompts' tokens that its prefix cache held; None: unknown.
    """

    in_flight: int
    steering: int
    is_ready: bool
    is_ejected: bool
    is_draining: bool
    capabilities: frozenset[Need]
    readings: Mapping[str, float]
    cached: float | None


@dataclass(frozen=True, slots=True)
class DryState:
    """A policy on trial, with the side that it would stand on now.

    `choices`: by where requests went, and where it would have sent them, how many requests.
    """

    policy: Policy
    side: str
    side_age_s: float
    switches: int
    choices: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A live worker process, and how many sequences its leases hold over all models; `started` is Unix seconds."""

    index: int
    pid: int
    started: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model's routing at one instant; `history` ends with the policy in force. `dry`: the policy on trial, if any.

    `workers` holds what each worker of the node has in flight, by its index. `waiting`: requests without a backend.
    """

    model: str
    workers: tuple[int, ...]
    backends: Mapping[str, BackendState]
    side: str
    side_age_s: float
    switches: int
    history: tuple[PolicyRecord, ...]
    dry: DryState | None
    waiting: int = 0

    @property
    def current(self) -> PolicyRecord:
        return self.history[-1]

    @property
    def is_ready(self) -> bool:
        return any(backend.is_ready for backend in self.backends.values())
