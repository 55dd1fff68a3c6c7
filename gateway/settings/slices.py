"""What the rooms get of the configuration: frozen values, one slice per room.

Knows the defaults and which thresholds make sense; not the file, the environment or pydantic.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

from gateway.core import Need

MAX_WORKERS = 64  # each placing of a request sums a count per worker

# What a backend can do beyond plain generation, where the operator knows better than its adapter.
Capabilities: TypeAlias = Mapping[Need, bool]
ToolParser: TypeAlias = Literal["auto", "none", "hermes", "llama3_json", "mistral"]
ReasoningParser: TypeAlias = Literal["auto", "none", "think"]
ReasoningField: TypeAlias = Literal["reasoning", "reasoning_content"]


@dataclass(frozen=True, slots=True)
class AllowSettings:
    """What of a client's own body goes on to an engine.

    `media`: schemes and origins of the URLs that it may be told to fetch. `fields`: beside those that always may.
    """

    media: frozenset[str] = frozenset({"data"})
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TritonSettings:
    """A Triton Inference Server reached over gRPC; `model` is the Triton model that speaks token ids."""

    kind: ClassVar[str] = "triton"

    name: str
    url: str  # grpc://host:port, grpcs:// for TLS
    model: str = "tensorrt_llm"
    metrics_url: str | None = None
    connect_timeout_s: float = 2.0
    idle_timeout_s: float = 120.0
    capabilities: Capabilities = field(default_factory=dict, hash=False)  # a mapping has none


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """A vLLM server reached over HTTP. `allow` None: bodies go on to it whatever is in them."""

    kind: ClassVar[str] = "vllm"

    name: str
    url: str  # http://host:port
    connect_timeout_s: float = 2.0
    idle_timeout_s: float = 120.0
    capabilities: Capabilities = field(default_factory=dict, hash=False)  # a mapping has none
    allow: AllowSettings | None = AllowSettings()


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """A server that speaks OpenAI's API; requests and answers pass unchanged. Ready while `health_path` is 200.

    `allow` as in VLLMSettings.
    """

    kind: ClassVar[str] = "relay"

    name: str
    url: str  # http://host:port
    metrics_url: str | None = None
    health_path: str = "/health"
    api_key: str | None = field(default=None, repr=False)
    allow: AllowSettings | None = None
    connect_timeout_s: float = 2.0
    idle_timeout_s: float = 120.0


BackendSettings: TypeAlias = TritonSettings | VLLMSettings | RelaySettings


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    """The low-load backend below, the high-load one above: over at `in_flight >= up`, back at `in_flight <= down`."""

    kind: ClassVar[str] = "threshold"

    low: str
    high: str
    up: int
    down: int
    dwell_s: float = 1.0

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it), for every contradiction in itself or with a model's backends."""
        yield from _find_wrong_names(self.low, self.high, backends)
        # At down == up one level of load would satisfy both rules, and each request would switch sides.
        if self.down >= self.up:
            yield "down", f"must be below up ({self.up}), is {self.down}"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The share `share` of requests, 0 to 1, goes to `low` and the rest to `high`, whatever the load."""

    kind: ClassVar[str] = "share"

    low: str
    high: str
    share: float

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        """As ThresholdSettings'."""
        return _find_wrong_names(self.low, self.high, backends)


PolicySettings: TypeAlias = ThresholdSettings | ShareSettings


def _find_wrong_names(low: str, high: str, backends: Collection[str]) -> Iterator[tuple[str, str]]:
    for key, name in (("low", low), ("high", high)):
        if name not in backends:
            yield key, f"{name!r} is not a backend of this model (it has {', '.join(backends)})"
    if low == high:
        yield "high", f"must differ from low, both are {low!r}"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One model as clients name it, and the backends that serve it; `policy` is None exactly when there is one.

    `relay_paths`: beside those that the gateway answers itself, what goes on to a backend that speaks OpenAI's API.
    """

    id: str
    tokenizer: Path | None
    backends: Mapping[str, BackendSettings]
    policy: PolicySettings | None = None
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    reasoning_field: ReasoningField = "reasoning"
    relay_paths: frozenset[str] = frozenset({"/v1/embeddings"})

    @property
    def is_relayed(self) -> bool:
        """On the relay lane as a whole: we cannot read its text, or none of its backends takes token ids."""
        return self.tokenizer is None or all(isinstance(backend, RelaySettings) for backend in self.backends.values())

    @property
    def chosen_from(self) -> tuple[str, ...]:
        """What a policy chooses between: on the token lane what takes token ids; others get what these cannot do."""
        return tuple(
            name for name, backend in self.backends.items() if self.is_relayed or not isinstance(backend, RelaySettings)
        )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much clients may take of the gateway: each of them, and with `max_bodies_bytes` all of one worker's."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024  # of bodies that are not whole yet
    max_head_bytes: int = 64 * 1024
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    client_write_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How long to wait between asking a backend whether it is ready: while it is, and while it is not."""

    interval_s: float = 1.0
    down_interval_s: float = 0.2


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """How often engines are asked what they hold and who they are, and how long a drift must last to be warned of."""

    interval_s: float = 5.0
    drift_for_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """After how many silent seconds a stream gets a comment; `keep_alive_commits`: as its very first bytes, too."""

    keep_alive_s: float | None = None
    keep_alive_commits: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """One gateway's whole configuration. Without `operator_key` the admin routes and pins are open to everyone."""

    listen_host: str
    listen_port: int
    models: tuple[ModelSettings, ...]
    workers: int = 1
    limits: LimitSettings = LimitSettings()
    probe: ProbeSettings = ProbeSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    streams: StreamSettings = StreamSettings()
    log_level: str = "info"
    operator_key: str | None = field(default=None, repr=False)
    runs_folder: Path = Path("runs")
