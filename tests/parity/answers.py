"""What a server answered: whole, or streamed and folded into the same form; and where a stream broke OpenAI's form.

In: a status and a body. Out: an Answer. Knows no request and no expectation.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]  # Any: JSON

# What differs from answer to answer by nature.
VOLATILE = frozenset({"id", "created", "object"})
# What chance decides where an answer is sampled.
DRAWN = frozenset({"content", "text", "arguments", "logprobs", "token_ids"})
COMMON = ("id", "object", "created", "model")


@dataclass(frozen=True, slots=True)
class Answer:
    """`document`: the whole answer, or what its chunks add up to, or the error.

    Of a stream, `fields`: the paths of all that its chunks hold; `breaches`: where it is not of OpenAI's form.
    """

    status: int
    backend: str | None
    reason: str
    document: Json
    fields: frozenset[str] = frozenset()
    breaches: tuple[str, ...] = ()

    @property
    def lasting(self) -> object:
        """What another answer to the same request must have in common with this one."""
        return _without(self.document, VOLATILE)

    @property
    def outline(self) -> object:
        """`lasting`, without what chance decides."""
        return _hollow(self.lasting)


def _without(value: object, names: frozenset[str]) -> object:
    match value:
        case dict():
            return {key: _without(inner, names) for key, inner in value.items() if key not in names}
        case list():
            return [_without(inner, names) for inner in value]
        case _:
            return value


def _hollow(value: object) -> object:
    match value:
        case dict():
            return {
                key: type(inner).__name__ if key in DRAWN and isinstance(inner, str | list) else _hollow(inner)
                for key, inner in value.items()
            }
        case list():
            return [_hollow(inner) for inner in value]
        case _:
            return value


def read_events(body: str) -> tuple[list[Json], list[str]]:
    """A stream's events, and what is wrong with its lines."""
    breaches = []
    *blocks, rest = body.split("\n\n")
    if rest:
        breaches.append(f"ends in an open line {rest[:80]!r}")
    data = [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]
    if len(data) < len([block for block in blocks if block.startswith(("data: ", ":"))]):
        breaches.append("holds lines that are neither data nor comments")
    if not data or data[-1] != "[DONE]" or data.count("[DONE]") > 1:
        breaches.append("does not end in one [DONE]")
    return [json.loads(block) for block in data if block != "[DONE]"], breaches


def fold(events: Sequence[Json], *, is_chat: bool) -> Json:
    """The answer that these chunks are of, in the form in which it comes when it is not streamed."""
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
    content, reasoning = (_join(deltas, name) for name in ("content", "reasoning"))
    calls = _fold_calls(call for delta in deltas for call in delta.get("tool_calls") or ())
    message["content"] = content or (None if calls or reasoning else "")
    if reasoning:
        message["reasoning"] = reasoning
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
