"""What the bodies of both generating endpoints share, as OpenAI's reference and vLLM's extensions name it.

Every field is honoured, has no effect by nature, or is refused by name (docs/api.md lists them); none is dropped.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from gateway.api.fields import ITEMS, TEXT, Labels, NonEmpty, Only, WireModel, refusal, text_or_items
from gateway.api.frames import Dialect
from gateway.core import Prompt
from gateway.language import ModelLanguage

INT32_END, INT64_END = 2**31, 2**63
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=INT32_END)]

# Matching is prepared per stop string and character, on the event loop: 8 MB of them held up every stream for 0.8 s.
MOST_STOP_CHARACTERS = 4096


def _refuse_long(text: object) -> object:
    if isinstance(text, str) and len(text) > MOST_STOP_CHARACTERS:
        raise refusal(f"must not be longer than {MOST_STOP_CHARACTERS} characters")
    return text


StopText: TypeAlias = Annotated[NonEmpty, BeforeValidator(_refuse_long)]
Stop: TypeAlias = Annotated[
    Annotated[StopText, TEXT] | Annotated[list[StopText], Field(max_length=4), ITEMS],  # 4 is OpenAI's limit
    Discriminator(
        text_or_items,
        custom_error_type="refused",
        custom_error_message="must be a string or a list of up to 4 strings",
    ),
]


class StreamOptions(WireModel):
    include_usage: bool = False
    include_obfuscation: Annotated[object, Only(False)] = None


class Generation(WireModel):
    """A body that asks for one generation."""

    dialect: ClassVar[Dialect]
    prompt_field: ClassVar[str]

    model: NonEmpty
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-INT64_END, lt=INT64_END)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0

    # vLLM's extensions
    top_k: Annotated[int, Field(ge=-1, lt=INT32_END)] = 0  # -1 and 0 both mean off
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, default_factory=list, fail_fast=True)]

    # No effect by nature: they label, bill or store, and an answer is the same without them.
    user: str | None = None
    metadata: Labels | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None

    # Refused, but for the value that asks for nothing.
    n: Annotated[object, Only(1)] = None
    logit_bias: Annotated[object, Only({})] = None
    min_p: Annotated[object, Only(0, 0.0)] = None
    include_stop_str_in_output: Annotated[object, Only(False)] = None
    skip_special_tokens: Annotated[object, Only(True)] = None
    spaces_between_special_tokens: Annotated[object, Only(True)] = None
    return_token_ids: Annotated[object, Only(False)] = None
    priority: Annotated[object, Only(0)] = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value if the client gave one."""
        return "max_tokens", self.max_tokens

    @abstractmethod
    def encode(self, language: ModelLanguage) -> Prompt:
        """The prompt's token ids. Raises InvalidRequest."""
