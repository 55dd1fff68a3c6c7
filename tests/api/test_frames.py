"""Text to bytes, as tables: no loop, no sockets."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.api.frames import CHAT, TEXT_COMPLETION, Dialect, Fold, Frames, Head, Stream, Usage
from gateway.core import FinishReason

NASTY = 'quote " backslash \\ newline \n tab \t nul \0 line-separator \u2028 emoji \U0001f600 %b %d </script>'
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def head(dialect: Dialect, model: str = "tiny") -> Head:
    return Head(dialect, "abc", 1700000000, model)


def run(frames: Frames, texts: Sequence[str]) -> bytes:
    pieces = [frames.open(), *map(frames.text, texts), frames.close(FinishReason.LENGTH, Usage(3, 5))]
    return b"".join(pieces)


def events(raw: bytes) -> list[object]:
    """What a strict reader of server-sent events makes of it: one data line each, blank lines between."""
    blocks = raw.split(b"\n\n")
    assert blocks.pop() == b""
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks)
    return [block[6:].decode() if block == b"data: [DONE]" else orjson.loads(block[6:]) for block in blocks]


def chunk(kind: str, request_id: str, choices: list[object], **more: object) -> dict[str, object]:
    fixed = {"id": request_id, "object": kind, "created": 1700000000, "model": "tiny", "system_fingerprint": None}
    return {**fixed, "choices": choices, **more}


def chat_choice(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def text_choice(text: str, finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


CHAT_CHOICES = [
    [chat_choice({"role": "assistant", "content": "", "refusal": None})],
    [chat_choice({"content": "Pa"})],
    [chat_choice({"content": "ris"})],
    [chat_choice({}, "length")],
]
TEXT_CHOICES = [[text_choice("Pa")], [text_choice("ris")], [text_choice("", "length")]]


@pytest.mark.parametrize(
    ("dialect", "kind", "request_id", "choices"),
    [
        (CHAT, "chat.completion.chunk", "chatcmpl-abc", CHAT_CHOICES),
        (TEXT_COMPLETION, "text_completion", "cmpl-abc", TEXT_CHOICES),
    ],
    ids=["chat", "text"],
)
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_is_what_openai_sends(
    dialect: Dialect, kind: str, request_id: str, choices: list[list[object]], include_usage: bool
) -> None:
    frames = Stream(head(dialect), include_usage)
    more: dict[str, object] = {"usage": None} if include_usage else {}
    expected: list[object] = [chunk(kind, request_id, choice, **more) for choice in choices]
    if include_usage:
        expected.append(chunk(kind, request_id, [], usage=USAGE))
    assert events(run(frames, ["Pa", "", "ris"])) == [*expected, "[DONE]"]
    assert frames.content_type.startswith(b"text/event-stream")


def test_folded_chat_is_one_object() -> None:
    message = {"role": "assistant", "content": "Paris", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    frames = Fold(head(CHAT))
    assert orjson.loads(run(frames, ["Pa", "", "ris"])) == chunk(
        "chat.completion", "chatcmpl-abc", [choice], usage=USAGE
    )
    assert frames.content_type == b"application/json"


def test_folded_text_is_one_object() -> None:
    choice = text_choice("Paris", "length")
    assert orjson.loads(run(Fold(head(TEXT_COMPLETION)), ["Pa", "ris"])) == chunk(
        "text_completion", "cmpl-abc", [choice], usage=USAGE
    )


@pytest.mark.parametrize("dialect", [CHAT, TEXT_COMPLETION], ids=["chat", "text"])
def test_any_text_and_any_model_name_survive_encoding(dialect: Dialect) -> None:
    model = 'we"ird%b\\model%'
    streamed = events(run(Stream(head(dialect, model), include_usage=False), [NASTY]))
    texts = [choice.get("text", choice.get("delta", {}).get("content")) for choice in choices_of(streamed)]
    assert "".join(filter(None, texts)) == NASTY
    folded = orjson.loads(run(Fold(head(dialect, model)), [NASTY]))
    assert folded["model"] == model
    choice = folded["choices"][0]
    assert (choice["text"] if dialect is TEXT_COMPLETION else choice["message"]["content"]) == NASTY


def choices_of(streamed: list[object]) -> list[Any]:  # Any: parsed JSON
    return [choice for event in streamed if isinstance(event, dict) for choice in event["choices"]]


def test_nothing_is_sent_before_the_end_of_a_folded_answer() -> None:
    frames = Fold(head(CHAT))
    assert (frames.open(), frames.text("Paris")) == (b"", b"")
