"""The shape of crossover.yaml: pydantic sections that refuse what they do not know, each turned into its slice.

Knows types and ranges; the forms of single values are forms.py's, whole-file contradictions load.py's.
"""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from gateway.core import Need
from gateway.settings.forms import (
    FieldName,
    GrpcUrl,
    HttpUrl,
    Key,
    Listen,
    MediaSource,
    MetricsUrl,
    ModelId,
    Name,
    RelayPath,
    Seconds,
    make_problem,
)
from gateway.settings.slices import (
    MAX_WORKERS,
    AllowSettings,
    Capabilities,
    EvidenceSettings,
    LimitSettings,
    PolicySettings,
    ProbeSettings,
    ReasoningField,
    ReasoningParser,
    RelaySettings,
    ShareSettings,
    StreamSettings,
    ThresholdSettings,
    ToolParser,
    TritonSettings,
    VLLMSettings,
)


def _check_kind(backend: object) -> object:
    kind = backend.get("kind") if isinstance(backend, dict) else None
    if kind not in {"triton", "vllm", "relay"}:
        raise make_problem("needs kind: triton, kind: vllm or kind: relay")
    return backend


def _kind_tag(backend: object) -> str | None:
    return f"kind={backend['kind']}" if isinstance(backend, dict) else None


class Section(BaseModel):
    """A mapping in the file: unknown keys are errors, and "8" is not 8."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TritonCapabilities(Section):
    """Of the needs those whose tensors the adapter writes."""

    logit_bias: bool | None = None
    penalties: bool | None = None
    min_tokens: bool | None = None
    guided_decoding: bool | None = None

    def slice(self) -> Capabilities:
        return {Need(name): has for name, has in self.model_dump(exclude_none=True).items()}


class VLLMCapabilities(TritonCapabilities):
    logprobs: bool | None = None
    prompt_logprobs: bool | None = None
    min_p: bool | None = None
    priority: bool | None = None
    relay: bool | None = None


class AllowSection(Section):
    media: list[MediaSource] = Field(default_factory=lambda: [*AllowSettings().media])
    fields: list[FieldName] = Field(default_factory=list)

    def slice(self) -> AllowSettings:
        return AllowSettings(frozenset(self.media), frozenset(self.fields))


def _read_allow(allow: object) -> object:
    if allow == "all":
        return None
    if not isinstance(allow, dict):
        raise make_problem("must be all, or a mapping of media and fields")
    return allow


Allow: TypeAlias = Annotated[AllowSection | None, BeforeValidator(_read_allow)]


class TritonSection(Section):
    kind: Literal["triton"]
    url: GrpcUrl
    model: Annotated[str, Field(min_length=1)] = "tensorrt_llm"
    metrics_url: MetricsUrl | None = None
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0
    capabilities: TritonCapabilities = TritonCapabilities()

    def slice(self, name: str) -> TritonSettings:
        plain = self.model_dump(exclude={"kind", "capabilities"})
        return TritonSettings(name=name, capabilities=self.capabilities.slice(), **plain)


class VLLMSection(Section):
    kind: Literal["vllm"]
    url: HttpUrl
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0
    capabilities: VLLMCapabilities = VLLMCapabilities()
    allow: Allow = AllowSection()

    def slice(self, name: str) -> VLLMSettings:
        plain = self.model_dump(exclude={"kind", "capabilities", "allow"})
        allow = None if self.allow is None else self.allow.slice()
        if allow is not None and self.capabilities.priority:
            allow = replace(allow, fields=allow.fields | {"priority"})
        return VLLMSettings(name=name, capabilities=self.capabilities.slice(), allow=allow, **plain)


class RelaySection(Section):
    kind: Literal["relay"]
    url: HttpUrl
    metrics_url: MetricsUrl | None = None
    health_path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]*$")] = "/health"
    api_key: Key | None = None
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0
    allow: Allow = None

    def slice(self, name: str) -> RelaySettings:
        allow = None if self.allow is None else self.allow.slice()
        return RelaySettings(name=name, allow=allow, **self.model_dump(exclude={"kind", "allow"}))


# pydantic puts them into error locations; they are no keys
BACKEND_TAGS = frozenset({"kind=triton", "kind=vllm", "kind=relay"})
BackendSection: TypeAlias = Annotated[
    Annotated[TritonSection, Tag("kind=triton")]
    | Annotated[VLLMSection, Tag("kind=vllm")]
    | Annotated[RelaySection, Tag("kind=relay")],
    Discriminator(_kind_tag),
    BeforeValidator(_check_kind),
]


class PolicySection(Section):
    """Of the keys that only some kinds have, null is the same as none: so does GET /admin/policy tell them."""

    kind: Literal["threshold", "share"] = "threshold"
    low: Name
    high: Name
    up: Annotated[int | None, Field(ge=1, le=1_000_000, validate_default=True)] = None
    down: Annotated[int | None, Field(ge=0, le=1_000_000, validate_default=True)] = None
    dwell_s: Annotated[float | None, Field(ge=0, le=3600)] = 1.0
    share: Annotated[float | None, Field(ge=0, le=1, validate_default=True)] = None

    @field_validator("up", "down", "dwell_s", "share")
    @classmethod
    def _check_kind(cls, value: float | None, info: ValidationInfo) -> float | None:
        kind = info.data.get("kind")  # absent if it is none of those that there are, which has been said then
        has_it = (info.field_name == "share") == (kind == "share")
        if kind and not has_it and value is not None:
            raise make_problem(f"is no key of kind {kind}")
        if kind and has_it and value is None and info.field_name != "dwell_s":
            raise PydanticCustomError("missing", "required")
        return value

    def slice(self) -> PolicySettings:
        if self.kind == "share":
            assert self.share is not None  # checked with its kind, as those below
            return ShareSettings(self.low, self.high, self.share)
        assert self.up is not None
        assert self.down is not None
        return ThresholdSettings(self.low, self.high, self.up, self.down, 1.0 if self.dwell_s is None else self.dwell_s)


class LimitSection(Section):
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 * 1024 * 1024
    max_bodies_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = 256 * 1024 * 1024
    max_head_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 64 * 1024
    head_timeout_s: Seconds = 30.0
    body_timeout_s: Seconds = 60.0
    client_write_timeout_s: Seconds = 30.0

    def slice(self) -> LimitSettings:
        return LimitSettings(**self.model_dump())


class ProbeSection(Section):
    interval_s: Seconds = 1.0
    down_interval_s: Seconds = 0.2

    def slice(self) -> ProbeSettings:
        return ProbeSettings(**self.model_dump())


class EvidenceSection(Section):
    interval_s: Seconds = 5.0
    drift_for_s: Seconds = 30.0

    def slice(self) -> EvidenceSettings:
        return EvidenceSettings(**self.model_dump())


class StreamSection(Section):
    keep_alive_s: Seconds | None = None
    keep_alive_commits: bool = False

    def slice(self) -> StreamSettings:
        return StreamSettings(**self.model_dump())


class ModelSection(Section):
    id: ModelId
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    backends: Annotated[dict[Name, BackendSection], Field(min_length=1)]
    policy: PolicySection | None = None
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    reasoning_field: ReasoningField = "reasoning"
    relay_paths: list[RelayPath] = Field(default_factory=lambda: ["/v1/embeddings"])


class ConfigurationFile(Section):
    listen: Listen = "127.0.0.1:8080"
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    models: Annotated[list[ModelSection], Field(min_length=1)]
    limits: LimitSection = LimitSection()
    probe: ProbeSection = ProbeSection()
    evidence: EvidenceSection = EvidenceSection()
    streams: StreamSection = StreamSection()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    operator_key: Key | None = None
    runs_folder: Annotated[str, Field(min_length=1)] = "runs"
