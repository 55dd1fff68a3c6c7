"""The configuration as the rooms get it: frozen values, one for each room, with the form and the default of each.

Knows neither the file nor the environment: configuration/ reads those.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, with_config

from gateway.core import Policy
from gateway.settings.backends import BackendSettings
from gateway.settings.forms import (
    FORM,
    File,
    Flag,
    Folder,
    HostName,
    Listen,
    ModelId,
    Network,
    OperatorKey,
    PageOrigin,
    RelayPath,
    Seconds,
    number,
    split_listen,
)

MAX_WORKERS = 64  # each placing of a request sums a count per worker

ToolParser: TypeAlias = Literal["auto", "none", "hermes", "llama3_json", "mistral"]
ReasoningParser: TypeAlias = Literal["auto", "none", "think"]
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content"]


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How many requests of a model wait for an engine at most, over all workers, and for how long each.

    `max_outage_s`: while no engine is ready.
    """

    max_waiting: Annotated[int, number(0, 1_000_000)] = 1024
    max_wait_s: Annotated[float, number(0, 3600)] = 30.0
    max_outage_s: Annotated[float, number(0, 3600)] = 30.0


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model as clients name it, and the backends that serve it; `policy` is None exactly when there is one.

    `dry`: a policy on trial, which places nothing. `ejection`: whether a backend whose requests fail gets none for a
    while.
    `relay_paths`: the paths that go on to a backend that speaks OpenAI's API, beside those the gateway itself answers.
    """

    id: ModelId
    tokenizer: Annotated[Folder | None, Field(default=None)]  # the default of the file; in code it has to be named
    backends: Mapping[str, BackendSettings]
    policy: Policy | None = None
    dry: Policy | None = None
    ejection: Literal["on", "off"] = "on"
    queue: QueueSettings = QueueSettings()
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    reasoning_field: ReasoningField = "reasoning"
    relay_paths: frozenset[RelayPath] = frozenset({"/v1/embeddings"})

    @property
    def is_relayed(self) -> bool:
        """Whether the whole model uses the relay lane: it has no tokenizer, or none of its backends takes token ids."""
        return self.tokenizer is None or not any(backend.takes_tokens for backend in self.backends.values())

    @property
    def chosen_from(self) -> tuple[str, ...]:
        """The backends that a policy chooses between: on the token lane those that take token ids.

        The others get the requests that these cannot answer.
        """
        return tuple(name for name, backend in self.backends.items() if self.is_relayed or backend.takes_tokens)


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much of the gateway one client may take; `max_bodies_bytes` is for all clients of one worker together."""

    max_body_bytes: Annotated[int, number(1024, 1 << 30)] = 8 * 1024 * 1024
    max_bodies_bytes: Annotated[int, number(1024, 1 << 40)] = 256 * 1024 * 1024  # not yet complete
    max_head_bytes: Annotated[int, number(1024, 1 << 20)] = 64 * 1024
    head_timeout_s: Seconds = 30.0
    body_timeout_s: Seconds = 60.0
    client_write_timeout_s: Seconds = 30.0


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """The pause between two readiness probes of a backend: while it is ready, and while it is not."""

    interval_s: Seconds = 1.0
    down_interval_s: Seconds = 0.2


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """The pause between two readings of an engine, and how long a drift must last before the log warns of it."""

    interval_s: Seconds = 5.0
    drift_for_s: Seconds = 30.0


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The silent seconds after which a stream gets a comment; `keep_alive_commits`: also as its very first bytes."""

    keep_alive_s: Seconds | None = None
    keep_alive_commits: Flag = False


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """Where finished answers of /v1/responses are kept for later requests, how many, and for how long."""

    keep: Literal["off", "memory", "file"] = "off"
    max_responses: Annotated[int, number(1, 10_000_000)] = 10_000
    max_bytes: Annotated[int, number(1024, 1 << 40)] = 256 * 1024 * 1024
    max_age_s: Annotated[float, number(1.0, 366 * 86_400.0)] = 86_400.0


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class MoveSettings:
    """How many tokens a second engines have to prefill again for answers that move at most, over all workers."""

    tokens_per_s: Annotated[int, number(1, 100_000_000)] | None = None


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class Settings:
    """One gateway's whole configuration. Without any key everything is open to everyone who reaches the port.

    `state_folder`: what outlives a restart; None: nothing does. `arrivals_file`: a trace of users' requests.
    `unknown_fields`: what becomes of a body's fields that the gateway does not know. `cors_origins`: whose pages may
    call it from a browser. `allow_anonymous`: whether it may listen beyond this machine without keys for inference.
    `trusted_proxies`: addresses of proxies whose x-forwarded-for counts.
    `allowed_hosts`: the names it is called by, beside its own. `open_metrics`: whether /metrics asks for no key.
    """

    models: tuple[ModelSettings, ...]
    listen: Listen = "127.0.0.1:8080"
    workers: Annotated[int, number(1, MAX_WORKERS)] = 1
    limits: LimitSettings = LimitSettings()
    probe: ProbeSettings = ProbeSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    streams: StreamSettings = StreamSettings()
    moves: MoveSettings = MoveSettings()
    responses: ResponseSettings = ResponseSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    operator_key: OperatorKey | None = field(default=None, repr=False)
    runs_folder: Folder = Path("runs")
    state_folder: Folder | None = None
    arrivals_file: File | None = None
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    cors_origins: frozenset[PageOrigin] = frozenset()
    trusted_proxies: frozenset[Network] = frozenset()
    allow_anonymous: Flag = False
    allowed_hosts: frozenset[HostName] = frozenset()
    open_metrics: Flag = False

    @property
    def listen_host(self) -> str:
        """The host of `listen`, without the brackets of an IPv6 address."""
        return split_listen(self.listen)[0]

    @property
    def listen_port(self) -> int:
        """The port of `listen`; 0 for any free one."""
        return split_listen(self.listen)[1]
