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
from gateway.settings import BackendSettings, ModelSettings


@dataclass(frozen=True, slots=True)
class Question:
    """What the operator wants known. `logs`, `required`: by backend. `generates`: short requests may be sent."""

    logs: Mapping[str, Path] = field(default_factory=dict)
    required: Mapping[str, frozenset[Topic]] = field(default_factory=dict)
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine. `model`: the first that it stands for in the configuration; `language`: None on the relay lane."""

    engine: Engine
    backend: BackendSettings
    model: ModelSettings
    language: ModelLanguage | None

    @property
    def where(self) -> str:
        return str(self.engine)

    @property
    def names(self) -> frozenset[str]:
        """What the configuration calls it."""
        return frozenset(place.backend for place in self.engine.places)


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
