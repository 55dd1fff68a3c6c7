"""POST /v1/completions: the body, and how its prompts, text or token ids, become prompts.

Knows OpenAI's text completion objects; not tokens or HTTP.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self, TypeAlias, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gateway.core import Prompt
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.frames import TEXT_COMPLETION, Dialect
from gateway.openai.generation import MAX_SEQUENCES, Generation
from gateway.openai.sampling import TokenId
from gateway.wire.fields import ITEMS, TEXT, Only, by_type, json_type, refusal, tag

TEXTS, ID_LISTS = tag("texts"), tag("id lists")
TokenIds: TypeAlias = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
SEVERAL = Field(max_length=MAX_SEQUENCES, fail_fast=True)


def _prompt_form(prompt: object) -> str | None:
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    if isinstance(first, str):
        return TEXTS.tag
    return ID_LISTS.tag if isinstance(first, list) else json_type(prompt)


CompletionPrompt: TypeAlias = Annotated[
    Annotated[str, TEXT]
    | Annotated[TokenIds, ITEMS]
    | Annotated[list[str], SEVERAL, TEXTS]
    | Annotated[list[TokenIds], SEVERAL, ID_LISTS],
    by_type("must be a string, a list of token ids, or a list of either", _prompt_form),
]


class CompletionRequest(Generation):
    dialect: ClassVar[Dialect] = TEXT_COMPLETION
    prompt_field: ClassVar[str] = "prompt"
    is_chat: ClassVar[bool] = False
    has_bounded_limit: ClassVar[bool] = True

    prompt: CompletionPrompt
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: int | None = None

    # vLLM's extension
    add_special_tokens: bool = True

    # Refused, but for the value that asks for nothing
    suffix: Annotated[object, Only("")] = None

    @field_validator("best_of")
    @classmethod
    def _keep_all(cls, best_of: int, info: ValidationInfo) -> int:
        if best_of != info.data.get("n", best_of):
            raise refusal("is not supported, unless it equals 'n'")
        return best_of

    @model_validator(mode="after")
    def _stay_together(self) -> Self:
        sequences = self.n * len(self._each())
        if sequences > MAX_SEQUENCES:
            reason = f"'n' makes {sequences} choices of all prompts; a request has up to {MAX_SEQUENCES}."
            raise InvalidRequest(reason, param="n")
        return self

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs

    @property
    def prompt_logprob_count(self) -> int | None:
        return self.logprobs if self.echo else None

    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        return [
            language.encode_text(prompt, add_special_tokens=self.add_special_tokens)
            if isinstance(prompt, str)
            else language.prompt_from_ids(prompt)
            for prompt in self._each()
        ]

    def _each(self) -> Sequence[str | list[int]]:
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return cast("Sequence[str | list[int]]", [self.prompt] if is_one else self.prompt)  # by its first one
