"""What the bodies of both completing endpoints share, as OpenAI's reference and vLLM's extensions name it.

Every field is honoured, has no effect by nature, or is refused by name (docs/api.md lists them); none is dropped.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gateway.core import Guide, Prompt
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.frames import AnswerHead, Dialect
from gateway.openai.presentation import Presentation
from gateway.openai.response_format import ResponseFormat
from gateway.openai.sampling import Sampled, Tier
from gateway.wire.body import Envelope
from gateway.wire.fields import Labels, Only, Refused, WireModel

# Of one request, n for each of its prompts: they are placed together, on one backend.
MAX_SEQUENCES = 128


class StreamOptions(WireModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's extension
    include_obfuscation: bool = False  # no effect: it pads chunks, whose lengths would show their texts' on the way


class Generation(Sampled):
    """The body of a completion or a chat completion.

    `has_bounded_limit`: whether a limit of tokens beyond the whole context is an error, as in vLLM's completions.
    """

    dialect: ClassVar[Dialect]
    has_bounded_limit: ClassVar[bool] = False

    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] = 1
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    response_format: ResponseFormat | None = None

    # vLLM's extension
    return_token_ids: bool = False

    service_tier: Tier | None = None

    # No effect by nature: they label, bill or store, and an answer is the same without them.
    user: str | None = None
    metadata: Labels | None = None
    store: bool | None = None
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

    @model_validator(mode="after")
    def _have_one_guide(self) -> Self:
        is_formatted = self.response_format is not None and self.response_format.guide() is not None
        if self.structured_outputs is not None and is_formatted:
            reason = "'structured_outputs' and 'response_format' say what an answer must match; send one."
            raise InvalidRequest(reason, param="structured_outputs")
        return self

    @property
    def tier(self) -> Tier | None:
        return self.service_tier

    @property
    def choices(self) -> int:
        return self.n

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether every chunk shows the usage so far; as in vLLM, only with the usage at the end."""
        return self.wants_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def token_limit(self) -> tuple[str, int | None]:
        return "max_tokens", self.max_tokens

    @cached_property
    def text_guide(self) -> Guide | None:
        asked = self.structured_outputs or self.response_format
        return None if asked is None else asked.guide()

    @property
    def text_guide_field(self) -> str:
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    def check(self, language: ModelLanguage) -> None:
        super().check(language)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
        field, limit = self.token_limit
        if self.max_tokens is not None and self.max_tokens != limit:
            raise InvalidRequest(f"'max_tokens' and '{field}' say different things; send one.", param="max_tokens")
        if self.has_bounded_limit and limit is not None and limit > language.context_length:
            reason = f"'{field}' is greater than this model's context length of {language.context_length} tokens."
            raise ContextLengthExceeded(reason, param=field)

    def presenter(self, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt]) -> Presentation:
        return Presentation(
            head=AnswerHead(self.dialect, envelope.request_id, envelope.created, self.model),
            stop=self.stop_strings,
            stream=self.stream,
            include_usage=self.wants_usage,
            continuous_usage=self.wants_continuous_usage,
            logprobs=self.logprob_count is not None,
            token_ids=self.return_token_ids,
            # Here, where it is done once, and for long prompts off the event loop. As in vLLM with the special tokens,
            # which their text may have spelt.
            echoes=tuple(language.decode(prompt.token_ids, shows_special=True) for prompt in prompts)
            if self.echo
            else (),
            include_stop=self.include_stop_str_in_output,
            # A guide allows what an answer holds; a special token in it is text, without which it would be no JSON.
            shows_special=self.is_guided or not self.skip_special_tokens,
            reasoning=envelope.reasoning_field.encode(),
            parsing=self.parsing(language, prompts[0]),
        )
