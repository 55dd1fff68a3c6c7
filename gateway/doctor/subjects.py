"""The engine to examine, what it is examined with, and the report on it. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.doctor.faults import Fault, Finding
from gateway.doctor.processes import Listener
from gateway.doctor.statements import Account, Topic
from gateway.evidence import Engine, Http, Identity
from gateway.language import ModelLanguage
from gateway.settings import BackendSettings, ModelSettings


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command. `logs`, `required`: by backend. `generates`: short requests may be sent."""

    logs: Mapping[str, Path] = field(default_factory=dict)
    required: Mapping[str, frozenset[Topic]] = field(default_factory=dict)
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine. `models`: the model of each of its places. `language`: that of the first model not relayed."""

    engine: Engine
    backend: BackendSettings
    models: tuple[ModelSettings, ...]
    language: ModelLanguage | None

    @property
    def where(self) -> str:
        return str(self.engine)

    @property
    def names(self) -> frozenset[str]:
        """Its backends' names in the configuration."""
        return frozenset(place.backend for place in self.engine.places)

    @property
    def max_in_flight(self) -> int:
        """How many requests the policies of all its models let it run at once, as far as they set a bound."""
        places = zip(self.engine.places, self.models, strict=True)
        return sum(model.policy.max_in_flight(place.backend) or 0 for place, model in places if model.policy)


@dataclass(frozen=True, slots=True)
class Means:
    """The means by which an engine is examined."""

    http: Http
    options: Options


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The findings and facts about one engine.

    `listener`: its process, if it is one of this machine's that may be looked at. `gpus`: the indexes of the GPUs that
    its processes are on, as far as is known.
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


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]
    engines: tuple[EngineReport, ...]

    @property
    def is_blind(self) -> bool:
        """Whether no engine answered."""
        return not any(engine.is_reached for engine in self.engines)
