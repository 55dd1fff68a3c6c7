"""The shape of crossover.yaml: pydantic sections that refuse what they do not know, each turned into its slice.

Knows types, ranges and the form of URLs; whole-file contradictions are load.py's.
"""

import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from gateway.settings.slices import (
    MAX_WORKERS,
    EvidenceSettings,
    LimitSettings,
    ProbeSettings,
    RelaySettings,
    ThresholdSettings,
    TritonSettings,
    VLLMSettings,
)


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("crossover", "{message}", {"message": message})


def _split_port(host_port: str) -> tuple[str, int] | None:
    host, _, digits = host_port.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", digits) or int(digits) > 65535:
        return None
    return host, int(digits)


def split_listen(listen: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as uvicorn wants them; port 0 asks the system for a free one."""
    parts = _split_port(listen)
    if parts is None:
        raise _problem("must look like host:port, for example 127.0.0.1:8080")
    return parts[0].removeprefix("[").removesuffix("]"), parts[1]


def _check_listen(listen: str) -> str:
    split_listen(listen)
    return listen


def _check_address(url: str, scheme: str) -> str:
    parts = urlsplit(url)
    has_extras = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme != scheme or has_extras or _split_port(parts.netloc) is None:
        raise _problem(f"must look like {scheme}://host:port")
    return url.rstrip("/")


def _check_grpc(url: str) -> str:
    return _check_address(url, "grpcs" if url.startswith("grpcs:") else "grpc")


def _check_http(url: str) -> str:
    return _check_address(url, "http")


def _check_metrics_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise _problem("must look like http://host:port/metrics")
    return url


def _check_kind(backend: object) -> object:
    kind = backend.get("kind") if isinstance(backend, dict) else None
    if kind not in {"triton", "vllm", "relay"}:
        raise _problem("needs kind: triton, kind: vllm or kind: relay")
    return backend


def _kind_tag(backend: object) -> str | None:
    return f"kind={backend['kind']}" if isinstance(backend, dict) else None


# Backend names stand in response headers and metric labels, model ids in both and in URLs.
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
ModelId: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,256}$")]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=86_400)]
Key: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{8,256}$")]  # travels as a bearer token


class Section(BaseModel):
    """A mapping in the file: unknown keys are errors, and "8" is not 8."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TritonSection(Section):
    kind: Literal["triton"]
    url: Annotated[str, AfterValidator(_check_grpc)]
    model: Annotated[str, Field(min_length=1)] = "tensorrt_llm"
    metrics_url: Annotated[str, AfterValidator(_check_metrics_url)] | None = None
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0

    def slice(self, name: str) -> TritonSettings:
        return TritonSettings(name=name, **self.model_dump(exclude={"kind"}))


class VLLMSection(Section):
    kind: Literal["vllm"]
    url: Annotated[str, AfterValidator(_check_http)]
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0

    def slice(self, name: str) -> VLLMSettings:
        return VLLMSettings(name=name, **self.model_dump(exclude={"kind"}))


class RelaySection(Section):
    kind: Literal["relay"]
    url: Annotated[str, AfterValidator(_check_http)]
    metrics_url: Annotated[str, AfterValidator(_check_metrics_url)] | None = None
    health_path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]*$")] = "/health"
    api_key: Key | None = None
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0

    def slice(self, name: str) -> RelaySettings:
        return RelaySettings(name=name, **self.model_dump(exclude={"kind"}))


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
    kind: Literal["threshold"] = "threshold"
    low: Name
    high: Name
    up: Annotated[int, Field(ge=1, le=1_000_000)]
    down: Annotated[int, Field(ge=0, le=1_000_000)]
    dwell_s: Annotated[float, Field(ge=0, le=3600)] = 1.0

    def slice(self) -> ThresholdSettings:
        return ThresholdSettings(self.low, self.high, self.up, self.down, self.dwell_s)


class LimitSection(Section):
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 8 * 1024 * 1024
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


class ModelSection(Section):
    id: ModelId
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    backends: Annotated[dict[Name, BackendSection], Field(min_length=1)]
    policy: PolicySection | None = None


class ConfigurationFile(Section):
    listen: Annotated[str, AfterValidator(_check_listen)] = "127.0.0.1:8080"
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    models: Annotated[list[ModelSection], Field(min_length=1)]
    limits: LimitSection = LimitSection()
    probe: ProbeSection = ProbeSection()
    evidence: EvidenceSection = EvidenceSection()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    operator_key: Key | None = None
