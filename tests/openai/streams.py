"""Streams of chat and text completions: their events, and the whole answer that their chunks add up to."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]  # Any: JSON

COMMON = ("id", "object", "created", "model")


def read_events(body: bytes) -> list[Json]:
    """The events as JSON. Strict: one data line each, blank lines between, [DONE] at the end or an error."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b"", rest
    assert all(block.startswith(b"data: ") and b"\n" not in block for block in blocks), body
    data = [block.removeprefix(b"data: ") for block in blocks]
    events = [orjson.loads(block) for block in data if block != b"[DONE]"]
    assert data.count(b"[DONE]") == (data[-1] == b"[DONE]"), body
    assert data[-1] == b"[DONE]" or "error" in events[-1], body
    return events


def fold(events: Sequence[Json], *, is_chat: bool) -> Json:
    """The answer in the form in which it comes when it is not streamed."""
    first = events[0]
    chunks: dict[int, list[Json]] = {}
    for event in events:
        for choice in event["choices"]:
            chunks.setdefault(choice["index"], []).append(choice)
    document = {name: first[name] for name in (*COMMON, "system_fingerprint") if name in first}
    document["choices"] = [_fold_choice(chunks[index], is_chat=is_chat) for index in sorted(chunks)]
    if usages := [event["usage"] for event in events if event.get("usage")]:
        document["usage"] = usages[-1]
    if prompts := [event["prompt_token_ids"] for event in events if event.get("prompt_token_ids")]:
        document["prompt_token_ids"] = prompts[0]
    return document


def _fold_choice(chunks: Sequence[Json], *, is_chat: bool) -> Json:
    choice: Json = {"index": chunks[0]["index"]}
    if is_chat:
        choice["message"] = _fold_message([chunk["delta"] for chunk in chunks])
    else:
        choice["text"] = "".join(chunk["text"] for chunk in chunks)
    choice["logprobs"] = _fold_logprobs([chunk["logprobs"] for chunk in chunks if chunk.get("logprobs")])
    reasons = [chunk["finish_reason"] for chunk in chunks if chunk.get("finish_reason")]
    choice["finish_reason"] = reasons[-1] if reasons else None
    if causes := [chunk["stop_reason"] for chunk in chunks if chunk.get("stop_reason") is not None]:
        choice["stop_reason"] = causes[-1]
    if any(chunk.get("token_ids") is not None for chunk in chunks):
        choice["token_ids"] = [token_id for chunk in chunks for token_id in chunk.get("token_ids") or ()]
    if prompts := [chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")]:
        choice["prompt_token_ids"] = prompts[0]
    return choice


def _fold_message(deltas: Sequence[Json]) -> Json:
    message: Json = {}
    for delta in deltas:
        message |= {name: delta[name] for name in ("role", "refusal") if name in delta}
    calls = _fold_calls(call for delta in deltas for call in delta.get("tool_calls") or ())
    reasoning = {name: text for name in ("reasoning", "reasoning_content") if (text := _join(deltas, name))}
    message["content"] = _join(deltas, "content") or (None if calls or reasoning else "")
    message |= reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _join(deltas: Sequence[Json], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


def _fold_calls(pieces: Iterable[Json]) -> list[Json]:
    calls: dict[int, Json] = {}
    for piece in pieces:
        call = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
        call |= {name: piece[name] for name in ("id", "type") if piece.get(name)}
        for name in ("name", "arguments"):
            call["function"][name] += piece.get("function", {}).get(name) or ""
    return [calls[index] for index in sorted(calls)]


def _fold_logprobs(pieces: Sequence[Json]) -> Json | None:
    if not pieces:
        return None
    folded: Json = {}
    for piece in pieces:
        for name, value in piece.items():
            folded[name] = (folded.get(name) or []) + value if isinstance(value, list) else folded.get(name, value)
    return folded
