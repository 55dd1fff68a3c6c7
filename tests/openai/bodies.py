"""Bodies as clients write them: read by their types, refused with the field's name, or asked of a model's language."""

from collections.abc import Mapping

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.presentation import Presentation
from gateway.wire.body import Body, Envelope, parse_body
from gateway.wire.parse import parse_json
from gateway.wire.translate import Generations, translate

USER = {"role": "user", "content": "Hello"}
CHAT: Mapping[str, object] = {"model": "tiny", "messages": [USER]}
TEXT: Mapping[str, object] = {"model": "tiny", "prompt": "Hello"}
ENVELOPE = Envelope(request_id="r1", created=1)


def chat(*messages: object, **fields: object) -> ChatCompletionRequest:
    """`messages`: by default one of a user."""
    return parse_body(ChatCompletionRequest, {**CHAT, "messages": list(messages) or [USER], **fields})


def text(**fields: object) -> CompletionRequest:
    return parse_body(CompletionRequest, {**TEXT, **fields})


def translate_chat(language: ModelLanguage, **fields: object) -> Generations:
    return translate(chat(**fields), language, ENVELOPE)


def translate_text(language: ModelLanguage, **fields: object) -> Generations:
    return translate(text(**fields), language, ENVELOPE)


def presented(generations: Generations) -> Presentation:
    assert isinstance(generations.presenter, Presentation)
    return generations.presenter


def refuse(body_type: type[Body], body: object) -> InvalidRequest:
    """`body`: bytes, or what is to be JSON."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body_type, parse_json(raw))
    return caught.value


def refuse_chat(*messages: object, **fields: object) -> InvalidRequest:
    return refuse(ChatCompletionRequest, {**CHAT, "messages": list(messages) or [USER], **fields})
