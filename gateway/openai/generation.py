"""What the bodies of both generating endpoints share, as OpenAI's reference and vLLM's extensions name it.

Every field is honoured, has no effect by nature, or is refused by name (docs/api.md lists them); none is dropped.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from gateway.core import NO_NEEDS, Guide, Need, Needs, Prompt
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.fields import ITEMS, TEXT, Labels, NonEmpty, Only, Refused, WireModel, json_type, refusal
from gateway.openai.frames import Dialect
from gateway.openai.parse import Unknown, read_model, validate
from gateway.openai.response_format import ResponseFormat, StructuredOutputs
from gateway.openai.tools import ToolPlan

Body = TypeVar("Body", bound="Generation")
INT32_END, INT64_END = 2**31, 2**63
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=INT32_END)]

# Of one request, n for each of its prompts: they are placed together, on one backend.
MAX_SEQUENCES = 128

# Matching is prepared per stop string and character, on the event loop: 8 MB of them held up every stream for 0.8 s.
MAX_STOP_CHARACTERS = 4096


def _refuse_long(text: object) -> object:
    if isinstance(text, str) and len(text) > MAX_STOP_CHARACTERS:
        raise refusal(f"must not be longer than {MAX_STOP_CHARACTERS} characters")
    return text


StopText: TypeAlias = Annotated[NonEmpty, BeforeValidator(_refuse_long)]
Stop: TypeAlias = Annotated[
    Annotated[StopText, TEXT] | Annotated[list[StopText], Field(max_length=4), ITEMS],  # 4 is OpenAI's limit
    Discriminator(
        json_type,
        custom_error_type="refused",
        custom_error_message="must be a string or a list of up to 4 strings",
    ),
]

MAX_BIASES = 1024
BIASED = re.compile(r"0|[1-9][0-9]{0,9}")
PENALTIES: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}  # off


def _check_biased(biases: object) -> object:
    """Checks that keys are token ids as JSON writes them; pydantic's own error would not name the field."""
    if not isinstance(biases, dict):
        return biases
    if len(biases) > MAX_BIASES:
        raise refusal(f"must not have more than {MAX_BIASES} entries")
    if not all(isinstance(key, str) and BIASED.fullmatch(key) for key in biases):
        raise refusal("must have token ids for keys")
    return biases


LogitBias: TypeAlias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_check_biased)]


def _check_seed(seed: object) -> object:
    """Refuses what does not fit 64 bits. The JSON reader makes a float of it, which pydantic would call the fault."""
    if isinstance(seed, float) and abs(seed) >= INT64_END:
        raise refusal(f"must be an integer from {-INT64_END} to {INT64_END - 1}")
    return seed


class StreamOptions(WireModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's extension
    include_obfuscation: bool = False  # no effect: it pads chunks, whose lengths would show their texts' on the way


class Generation(WireModel):
    """A body that asks for one generation, or several of the same kind.

    `relay_field`: the field for which the body goes on as it came; None if the body has been read.
    `has_bounded_limit`: whether a limit of tokens beyond the whole context is an error, as in vLLM's completions.
    """

    dialect: ClassVar[Dialect]
    prompt_field: ClassVar[str]
    has_bounded_limit: ClassVar[bool] = False
    relay_field: ClassVar[str | None] = None  # of a body, not of a class, but no field that a client may send

    model: NonEmpty
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = 1
    stop: Stop | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-INT64_END, lt=INT64_END), BeforeValidator(_check_seed)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: LogitBias | None = None
    response_format: ResponseFormat | None = None

    # vLLM's extensions
    top_k: Annotated[int, Field(ge=-1, lt=INT32_END)] = 0  # -1 and 0 both mean off
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, default_factory=list, fail_fast=True)]
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Field(ge=-INT32_END, lt=INT32_END)] = 0
    cache_salt: Annotated[NonEmpty, Field(max_length=1024)] | None = None

    # No effect by nature: they label, bill or store, and an answer is the same without them.
    user: str | None = None
    metadata: Labels | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    spaces_between_special_tokens: bool | None = None  # byte-level and SentencePiece decoders put none

    # Refused, but for the value that asks for nothing.
    echo: Annotated[bool, Only(False)] = False
    prompt_logprobs: Refused = None
    use_beam_search: Annotated[object, Only(False)] = None
    length_penalty: Annotated[object, Only(1, 1.0)] = None
    allowed_token_ids: Refused = None
    bad_words: Annotated[object, Only([])] = None
    truncate_prompt_tokens: Refused = None
    return_tokens_as_token_ids: Annotated[object, Only(False)] = None

    @classmethod
    def find_relay_field(cls, document: dict[str, object]) -> str | None:
        """Returns the first field, as a path, that only the relay lane can serve. The body is not validated yet."""
        return None

    @classmethod
    def unread(cls, model: str, relay_field: str) -> Self:
        """Returns a body that goes on as it came, of which nothing else is known."""
        body = cls.model_construct(model=model)
        object.__setattr__(body, "relay_field", relay_field)  # pydantic would take it for a field
        return body

    @model_validator(mode="after")
    def _have_one_guide(self) -> Self:
        is_formatted = self.response_format is not None and self.response_format.guide() is not None
        if self.structured_outputs is not None and is_formatted:
            reason = "'structured_outputs' and 'response_format' say what an answer must match; send one."
            raise InvalidRequest(reason, param="structured_outputs")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether every chunk shows the usage so far; as in vLLM, only with the usage at the end."""
        return self.wants_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def wants_token_ids(self) -> bool:
        return self.return_token_ids

    @property
    def include_stop(self) -> bool:
        return self.include_stop_str_in_output

    @property
    def shows_special(self) -> bool:
        return not self.skip_special_tokens

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value if the client gave one."""
        return "max_tokens", self.max_tokens

    @cached_property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """Token ids and what is added to their logits; the ids are not checked against a vocabulary yet."""
        return tuple((int(key), bias) for key, bias in (self.logit_bias or {}).items() if bias)

    @cached_property
    def tool_plan(self) -> ToolPlan | None:
        return None

    @property
    @abstractmethod
    def logprob_count(self) -> int | None:
        """How many alternatives to show beside each token's log-probability; None: show no log-probabilities."""

    @property
    def prompt_logprob_count(self) -> int | None:
        """How many alternatives to show for the prompt's tokens; None: show no log-probabilities."""
        return None

    @cached_property
    def text_guide(self) -> Guide | None:
        """What the client wants the text to match."""
        asked = self.structured_outputs or self.response_format
        return None if asked is None else asked.guide()

    @property
    def text_guide_field(self) -> str:
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def is_guided(self) -> bool:
        """Whether the engine holds the text to a form."""
        return self.text_guide is not None

    def find_guide(self, language: ModelLanguage) -> Guide | None:
        """Returns what the engine holds the text to. Raises InvalidRequest."""
        return self.text_guide

    @property
    def guide_field(self) -> str:
        """The field that the guide comes from."""
        return self.text_guide_field

    def needs(self) -> Needs:
        """Returns what only some backends can do, with the field that asks for it; a neutral value is no need."""
        if self.relay_field is not None:
            return {Need.RELAY: self.relay_field}
        asked: dict[Need, str] = {}
        if self.logprob_count is not None:
            asked[Need.LOGPROBS] = "logprobs"
        if self.prompt_logprob_count is not None:
            asked[Need.PROMPT_LOGPROBS] = "echo"
        asked.update(self._sampling_needs())
        if self.is_guided:
            asked[Need.GUIDE] = self.guide_field
        if self.priority:
            asked[Need.PRIORITY] = "priority"
        if self.cache_salt is not None:
            asked[Need.CACHE_SALT] = "cache_salt"
        return asked or NO_NEEDS

    def _sampling_needs(self) -> Iterator[tuple[Need, str]]:
        if self.bias:
            yield Need.LOGIT_BIAS, "logit_bias"
        if self.min_p:
            yield Need.MIN_P, "min_p"
        for name, neutral in PENALTIES.items():
            if getattr(self, name) != neutral:
                yield Need.PENALTIES, name
                break
        # Where no token can end the answer early, it is not sent to the engine.
        if self.min_tokens and (self.stop_token_ids or not self.ignore_eos):
            yield Need.MIN_TOKENS, "min_tokens"

    @abstractmethod
    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        """Returns each prompt's token ids, in order. Raises InvalidRequest."""


def parse_generation(body_type: type[Body], document: dict[str, object], unknown: Unknown = "refuse") -> Body:
    """Parses a body. One for the relay lane alone is read no further and goes on as it is. Raises InvalidRequest."""
    field = body_type.find_relay_field(document)
    if field is not None:
        return body_type.unread(read_model(document), field)
    return validate(body_type, document, unknown)
