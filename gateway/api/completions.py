"""POST /v1/completions: the body, and how its prompt, text or token ids, becomes a prompt.

Knows OpenAI's text completion objects; not tokens or HTTP.
"""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from gateway.api.fields import ITEMS, TEXT, Only, Refused, refusal, text_or_items
from gateway.api.frames import TEXT_COMPLETION, Dialect
from gateway.api.generation import Generation, TokenId
from gateway.core import Prompt
from gateway.language import ModelLanguage

TokenIds: TypeAlias = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
PROMPT_FORMS = "must be a string, a list of token ids, or a list of one of either"


def _unwrap_single(prompt: object) -> object:
    """OpenAI lets `prompt` be a list of prompts, each with its own choices; a list of one is the one."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise refusal("is not supported yet with more than one prompt")
        return prompt[0]
    return prompt


CompletionPrompt: TypeAlias = Annotated[
    Annotated[str, TEXT] | Annotated[TokenIds, ITEMS],
    Discriminator(text_or_items, custom_error_type="refused", custom_error_message=PROMPT_FORMS),
    BeforeValidator(_unwrap_single),
]


class CompletionRequest(Generation):
    dialect: ClassVar[Dialect] = TEXT_COMPLETION
    prompt_field: ClassVar[str] = "prompt"

    prompt: CompletionPrompt

    # Refused, but for the value that asks for nothing
    best_of: Annotated[object, Only(1)] = None
    echo: Annotated[object, Only(False)] = None
    suffix: Annotated[object, Only("")] = None
    logprobs: Refused = None

    def encode(self, language: ModelLanguage) -> Prompt:
        if isinstance(self.prompt, str):
            return language.encode_text(self.prompt)
        return language.prompt_from_ids(self.prompt)
