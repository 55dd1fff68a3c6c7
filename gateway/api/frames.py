"""Text in, OpenAI's bytes out: a stream of server-sent events, or the same stream folded into one JSON object.

What does not change during an answer is encoded once, so a token costs one small dumps. Knows no tokens, HTTP or time.
"""

from dataclasses import dataclass
from typing import Protocol

import orjson

from gateway.core import FinishReason


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one endpoint spells a choice. `%b` stands for a JSON string."""

    id_prefix: str
    object: str
    chunk_object: str
    opening_choice: bytes | None
    text_choice: bytes
    last_choice: bytes
    whole_choice: bytes


CHAT = Dialect(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening_choice=(
        b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}'
    ),
    text_choice=b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":null}',
    last_choice=b'{"index":0,"delta":{},"logprobs":null,"finish_reason":%b}',
    whole_choice=(
        b'{"index":0,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":null,"finish_reason":%b}'
    ),
)
TEXT_COMPLETION = Dialect(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    opening_choice=None,
    text_choice=b'{"index":0,"text":%b,"logprobs":null,"finish_reason":null}',
    last_choice=b'{"index":0,"text":"","logprobs":null,"finish_reason":%b}',
    whole_choice=b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b}',
)


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int

    def encode(self) -> bytes:
        total = self.prompt_tokens + self.completion_tokens
        counts = (self.prompt_tokens, self.completion_tokens, total)
        return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % counts


@dataclass(frozen=True, slots=True)
class Head:
    """What every object of one answer begins with; `created` is in Unix seconds."""

    dialect: Dialect
    request_id: str
    created: int
    model: str

    def encode(self, kind: str) -> bytes:
        fields = {
            "id": self.dialect.id_prefix + self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }
        return orjson.dumps(fields)[:-1]  # left open for `choices`


class Frames(Protocol):
    """A pipe from text to bytes; b"" where nothing is to be sent yet. `open` once, then `text`s, then `close` once."""

    content_type: bytes
    is_stream: bool

    def open(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def close(self, reason: FinishReason, usage: Usage) -> bytes: ...


class Stream:
    """Server-sent events exactly as OpenAI sends them."""

    content_type = b"text/event-stream; charset=utf-8"
    is_stream = True

    def __init__(self, head: Head, include_usage: bool) -> None:
        self._dialect = head.dialect
        self._include_usage = include_usage
        self._before = b"data: " + head.encode(head.dialect.chunk_object) + b',"choices":['
        self._after = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        before_text, _, after_text = head.dialect.text_choice.partition(b"%b")
        self._before_text = self._before + before_text
        self._after_text = after_text + self._after

    def open(self) -> bytes:
        choice = self._dialect.opening_choice
        return b"" if choice is None else self._before + choice + self._after

    def text(self, text: str) -> bytes:
        return self._before_text + orjson.dumps(text) + self._after_text if text else b""

    def close(self, reason: FinishReason, usage: Usage) -> bytes:
        last = self._before + self._dialect.last_choice % orjson.dumps(reason) + self._after
        counts = self._before + b'],"usage":' + usage.encode() + b"}\n\n" if self._include_usage else b""
        return last + counts + b"data: [DONE]\n\n"


class Fold:
    """The same stream as one object: nothing is sent before the end."""

    content_type = b"application/json"
    is_stream = False

    def __init__(self, head: Head) -> None:
        self._head = head
        self._texts: list[str] = []

    def open(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        self._texts.append(text)
        return b""

    def close(self, reason: FinishReason, usage: Usage) -> bytes:
        dialect = self._head.dialect
        choice = dialect.whole_choice % (orjson.dumps("".join(self._texts)), orjson.dumps(reason))
        return self._head.encode(dialect.object) + b',"choices":[' + choice + b'],"usage":' + usage.encode() + b"}"
