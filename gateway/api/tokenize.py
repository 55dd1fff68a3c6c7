"""POST /tokenize and /detokenize, as vLLM has them: text or messages in, token ids out, and back.

In: a body's JSON and a model's language. Out: the answer's JSON. Knows no engine and no HTTP.
"""

from typing import Annotated

from pydantic import Field

from gateway.api.chat import Rendered
from gateway.api.fields import NonEmpty, Refused, WireModel
from gateway.api.generation import TokenId
from gateway.api.parse import validate
from gateway.api.tools import plan_tools
from gateway.language import ModelLanguage


class TokenizeText(WireModel):
    model: NonEmpty
    prompt: str
    messages: Refused = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChat(Rendered):
    model: NonEmpty
    prompt: Refused = None
    return_token_strs: bool = False
    chat_template: Refused = None


class Detokenize(WireModel):
    model: NonEmpty
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def tokenize(document: dict[str, object], language: ModelLanguage) -> dict[str, object]:
    """Raises InvalidRequest. A text that is longer than the context has its count, too."""
    if document.get("messages") is None:
        text = validate(TokenizeText, document)
        token_ids = language.tokenize_text(text.prompt, add_special_tokens=text.add_special_tokens)
        return _tell(token_ids, language, shows_tokens=text.return_token_strs)
    chat = validate(TokenizeChat, document)
    how = chat.rendering(plan_tools(chat.tools, None, parallel=True), dict(chat.chat_template_kwargs or {}))
    messages = [message.plain() for message in chat.messages]
    token_ids = language.tokenize_chat(messages, how, add_special_tokens=chat.add_special_tokens)
    return _tell(token_ids, language, shows_tokens=chat.return_token_strs)


def detokenize(document: dict[str, object], language: ModelLanguage) -> dict[str, object]:
    """Raises InvalidRequest. Special tokens show, ids outside the vocabulary do not."""
    return {"prompt": language.decode(validate(Detokenize, document).tokens, shows_special=True)}


def _tell(token_ids: list[int], language: ModelLanguage, *, shows_tokens: bool) -> dict[str, object]:
    return {
        "count": len(token_ids),
        "max_model_len": language.context_length,
        "tokens": token_ids,
        "token_strs": [language.token(token_id) for token_id in token_ids] if shows_tokens else None,
    }
