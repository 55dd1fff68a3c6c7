"""A backend's section of crossover.yaml: what every kind has, and the kinds that an adapter in backends/ takes.

Each field is a key of the section, with its form and its default. A kind's readers and factories: engine_kinds/.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, create_model, with_config

from gateway.core import Need
from gateway.settings.forms import (
    FORM,
    FieldName,
    GrpcUrl,
    HttpUrl,
    Key,
    MediaSource,
    MetricsUrl,
    Seconds,
    make_problem,
    number,
)

# What a backend can do beyond plain generation, where the operator knows better than its adapter.
Capabilities: TypeAlias = Mapping[Need, bool]

NAME_KEY = "(name)"  # under which a section is given its own name, which is its key in the file


def _read_capabilities(*needs: Need) -> PlainValidator:
    """Returns the form of a mapping from these needs to true or false. Null is the same as no entry."""
    fields: dict[str, Any] = {need.value: (bool | None, None) for need in needs}  # Any: pydantic's own form
    section = create_model("Capabilities", __config__=ConfigDict(extra="forbid", strict=True), **fields)

    def read(value: object) -> Capabilities:
        given = section.model_validate(value).model_dump(exclude_none=True)
        return {Need(name): has for name, has in given.items()}

    return PlainValidator(read)


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class AllowSettings:
    """The parts of a client's own body that go on to an engine.

    `media`: schemes and origins of the URLs that the engine may be asked to fetch. `fields`: the fields that go on
    beside those that always do.
    """

    media: frozenset[MediaSource] = frozenset({"data"})
    fields: frozenset[FieldName] = frozenset()


def _read_allow(allow: object) -> object:
    if allow == "all":
        return None
    if not isinstance(allow, dict):
        raise make_problem("must be all, or a mapping of media and fields")
    return allow


Allow: TypeAlias = Annotated[AllowSettings | None, BeforeValidator(_read_allow)]  # None: bodies go on as they are


@with_config(FORM)
@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The keys of every kind. A kind sets the class variables and adds its own keys.

    `server`: what listens at `url`, in words. `takes_tokens`: the token lane leads to it, which sends token ids.
    `speaks_openai`: the relay lane leads to it, which sends a client's own body. `max_in_flight`,
    `max_prefill_tokens`: beyond which requests wait in the gateway; None: by the node model.
    """

    kind: ClassVar[str]
    server: ClassVar[str]
    takes_tokens: ClassVar[bool]
    speaks_openai: ClassVar[bool]

    name: Annotated[str, Field(validation_alias=NAME_KEY)]
    url: str
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 120.0
    max_in_flight: Annotated[int, number(1, 1_000_000)] | None = None
    max_prefill_tokens: Annotated[int, number(1, 100_000_000)] | None = None

    @property
    def allow(self) -> AllowSettings | None:
        return None

    @property
    def capabilities(self) -> Capabilities:
        return {}

    def servers(self) -> Iterator[tuple[str, str]]:
        """Yields each server of the backend that needs an address of its own, and its URL."""
        yield self.server, self.url


@dataclass(frozen=True, slots=True)
class TritonSettings(BackendSettings):
    """A Triton Inference Server reached over gRPC; `model` is the Triton model that speaks token ids."""

    kind: ClassVar[str] = "triton"
    server: ClassVar[str] = "a Triton's gRPC"
    takes_tokens: ClassVar[bool] = True
    speaks_openai: ClassVar[bool] = False

    url: GrpcUrl
    model: Annotated[str, Field(min_length=1)] = "tensorrt_llm"
    metrics_url: MetricsUrl | None = None
    capabilities: Annotated[
        Capabilities, _read_capabilities(Need.LOGIT_BIAS, Need.PENALTIES, Need.MIN_TOKENS, Need.GUIDE)
    ] = field(default_factory=dict, hash=False)  # a mapping has no hash

    def servers(self) -> Iterator[tuple[str, str]]:
        yield self.server, self.url
        if self.metrics_url is not None:
            yield "a Triton's metrics page", self.metrics_url


@dataclass(frozen=True, slots=True)
class VLLMSettings(BackendSettings):
    """A vLLM server reached over HTTP, by either lane."""

    kind: ClassVar[str] = "vllm"
    server: ClassVar[str] = "a vLLM"
    takes_tokens: ClassVar[bool] = True
    speaks_openai: ClassVar[bool] = True

    url: HttpUrl
    api_key: Key | None = field(default=None, repr=False)
    capabilities: Annotated[Capabilities, _read_capabilities(*Need)] = field(default_factory=dict, hash=False)
    allow: Allow = AllowSettings()

    def __post_init__(self) -> None:
        """Lets a backend that heeds priorities get them in a client's own body too."""
        if self.allow is not None and self.capabilities.get(Need.PRIORITY):
            object.__setattr__(self, "allow", replace(self.allow, fields=self.allow.fields | {"priority"}))


@dataclass(frozen=True, slots=True)
class RelaySettings(BackendSettings):
    """A server that speaks OpenAI's API; requests and answers pass unchanged. Ready while `health_path` answers 200."""

    kind: ClassVar[str] = "relay"
    server: ClassVar[str] = "a relay's server"
    takes_tokens: ClassVar[bool] = False
    speaks_openai: ClassVar[bool] = True

    url: HttpUrl
    metrics_url: MetricsUrl | None = None
    health_path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]*$")] = "/health"
    api_key: Key | None = field(default=None, repr=False)
    allow: Allow = None
