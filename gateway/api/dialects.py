"""How each generating endpoint spells a choice: the constant bytes around what changes.

Knows OpenAI's objects; not whether they are streamed, nor who fills them.
"""

from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True)
class Dialect:
    """`opening`, `last`: what a choice's first and last chunk hold. `text`: what stands around a chunk's text.

    `chunk_object`, `object`: the type's name, streamed and whole.
    """

    id_prefix: str
    object: str
    chunk_object: str
    opening: bytes
    text: tuple[bytes, bytes]
    last: bytes


CHAT = Dialect(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":"","refusal":null}',
    text=(b'"delta":{"content":', b"}"),
    last=b'"delta":{}',
)
TEXT_COMPLETION = Dialect(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    opening=b"",
    text=(b'"text":', b""),
    last=b'"text":""',
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
