"""POST /tokenize and /detokenize, as vLLM has them: text or messages in, token ids out, and back.

In: a body's JSON and a model's language. Out: the answer's JSON. Knows no engine and no HTTP.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated

import orjson
from pydantic import Field

from gateway.language import ModelLanguage
from gateway.openai.rendering import RenderedChat
from gateway.openai.sampling import TokenId
from gateway.openai.tools import plan_tools
from gateway.wire.fields import NonEmpty, Refused, WireModel
from gateway.wire.parse import Unknown, validate

PIECE_TOKENS = 50_000  # what is made of more of them at once would hold up the interpreter, and with it every stream


class TokenizeText(WireModel):
    model: NonEmpty
    prompt: str
    messages: Refused = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChat(RenderedChat):
    model: NonEmpty
    prompt: Refused = None
    return_token_strs: bool = False
    chat_template: Refused = None


class Detokenize(WireModel):
    model: NonEmpty
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def tokenize(document: dict[str, object], language: ModelLanguage, unknown: Unknown = "refuse") -> bytes:
    """Returns the ids and their count, even of a text that is longer than the context. Raises InvalidRequest."""
    if document.get("messages") is None:
        text = validate(TokenizeText, document, unknown)
        token_ids = language.tokenize_text(text.prompt, add_special_tokens=text.add_special_tokens)
        return _encode(token_ids, language, shows_tokens=text.return_token_strs)
    chat = validate(TokenizeChat, document, unknown)
    how = chat.rendering(plan_tools(chat.tools, None, parallel=True), dict(chat.chat_template_kwargs or {}))
    messages = [message.plain() for message in chat.messages]
    token_ids = language.tokenize_chat(messages, how, add_special_tokens=chat.add_special_tokens)
    return _encode(token_ids, language, shows_tokens=chat.return_token_strs)


def detokenize(document: dict[str, object], language: ModelLanguage, unknown: Unknown = "refuse") -> bytes:
    """Returns the text. Special tokens show, ids outside the vocabulary do not. Raises InvalidRequest."""
    tokens = validate(Detokenize, document, unknown).tokens
    return orjson.dumps({"prompt": language.decode(tokens, shows_special=True)})


def _encode(token_ids: Sequence[int], language: ModelLanguage, *, shows_tokens: bool) -> bytes:
    head = orjson.dumps({"count": len(token_ids), "max_model_len": language.context_length})
    tokens = b",".join(orjson.dumps(piece)[1:-1] for piece in _cut(token_ids))
    strings = b"null"
    if shows_tokens:
        pieces = ([language.token(token_id) for token_id in piece] for piece in _cut(token_ids))
        strings = b"[%b]" % b",".join(orjson.dumps(piece)[1:-1] for piece in pieces)
    return b'%b,"tokens":[%b],"token_strs":%b}' % (head[:-1], tokens, strings)


def _cut(token_ids: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(token_ids), PIECE_TOKENS):
        yield list(token_ids[start : start + PIECE_TOKENS])
