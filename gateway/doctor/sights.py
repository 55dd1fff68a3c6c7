"""The nouns of an examination: what is to be looked at, with what, and what was seen of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.doctor.faults import Fault, Finding
from gateway.doctor.http import Http
from gateway.doctor.processes import Listener
from gateway.doctor.statements import Account, Topic
from gateway.evidence import Identity
from gateway.evidence.readers import Engine
from gateway.language import ModelLanguage
from gateway.settings import BackendSettings, ModelSettings, PolicySettings, ThresholdSettings


@dataclass(frozen=True, slots=True)
class Question:
    """What the operator wants known. `logs`, `required`: by backend. `generates`: short requests may be sent."""

    logs: Mapping[str, Path] = field(default_factory=dict)
    required: Mapping[str, frozenset[Topic]] = field(default_factory=dict)
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine. `models`: of each of its places; `language`: of the first that is not relayed."""

    engine: Engine
    backend: BackendSettings
    models: tuple[ModelSettings, ...]
    language: ModelLanguage | None

    @property
    def where(self) -> str:
        return str(self.engine)

    @property
    def names(self) -> frozenset[str]:
        """What the configuration calls it."""
        return frozenset(place.backend for place in self.engine.places)

    @property
    def most_in_flight(self) -> int:
        """How many the policies may leave on it as the low side, and surely bring to it as the high one."""
        places = zip(self.engine.places, self.models, strict=True)
        return sum(_most_in_flight(model.policy, place.backend) for place, model in places)


def _most_in_flight(policy: PolicySettings | None, name: str) -> int:
    """A share bounds nothing."""
    if not isinstance(policy, ThresholdSettings) or name not in {policy.low, policy.high}:
        return 0
    return policy.up - 1 if name == policy.low else policy.up


@dataclass(frozen=True, slots=True)
class Means:
    """What an engine is looked at with."""

    http: Http
    question: Question


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of one engine.

    `listener`: its process, if it is one of this machine's that may be looked at. `gpus`: the indexes of those that its
    processes are on, as far as can be told.
    """

    subject: Subject
    findings: tuple[Finding, ...]
    account: Account = field(default_factory=dict)
    identity: Identity = field(default_factory=dict)
    listener: Listener | None = None
    gpus: tuple[str, ...] = ()

    @property
    def is_reached(self) -> bool:
        return all(finding.fault is not Fault.UNREACHABLE for finding in self.findings)
