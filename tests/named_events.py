"""Streams of named events: Messages' and Responses', and the whole answer that each adds up to, checked on the way."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import orjson

Json: TypeAlias = dict[str, Any]  # Any: JSON


def read_named(body: bytes) -> list[Json]:
    """The events as JSON. Strict: a name, which the data repeats, and one data line; a last [DONE] is left out."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b"", rest
    if blocks[-1] == b"data: [DONE]":
        blocks.pop()
    events = []
    for block in blocks:
        first, second = block.split(b"\n")
        event: Json = orjson.loads(second.removeprefix(b"data: "))
        assert first == b"event: " + event["type"].encode(), block
        events.append(event)
    return events


def fold_message(events: Sequence[Json]) -> Json:
    """The message in the form in which it comes when it is not streamed. Raises AssertionError for another order."""
    start, ping, *inner, delta, stop = events
    assert [event["type"] for event in (start, ping, delta, stop)] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip
    message: Json = dict(start["message"])
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    blocks: list[Json] = []
    is_open = False
    for event in inner:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                _grow(blocks[-1], event["delta"])
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _read_object(block.pop("written", ""))
    return {**message, "content": blocks, **delta["delta"], "usage": delta["usage"]}


def _grow(block: Json, delta: Json) -> None:
    match delta["type"], block["type"]:
        case "text_delta", "text":
            block["text"] += delta["text"]
        case "thinking_delta", "thinking":
            block["thinking"] += delta["thinking"]
        case "signature_delta", "thinking":
            block["signature"] += delta["signature"]
        case "input_json_delta", "tool_use":
            block["written"] = block.get("written", "") + delta["partial_json"]
        case pair:
            raise AssertionError(pair)


def _read_object(written: str) -> Json:
    try:
        found = orjson.loads(written)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


DELTAS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


def fold_response(events: Sequence[Json]) -> Json:
    """The response of the last event. Raises AssertionError unless the events before make up its output, in order."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, progress, *inner, last = events
    assert (created["type"], progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == progress["response"]
    assert created["response"]["status"] == "in_progress"
    assert last["type"] == f"response.{last['response']['status']}"
    places = sorted({event["output_index"] for event in inner})
    assert places == list(range(len(last["response"]["output"])))
    order = [event["output_index"] for event in inner]
    assert order == sorted(order)
    for place, item in enumerate(last["response"]["output"]):
        _check_item(item, [event for event in inner if event["output_index"] == place])
    changing = {"status", "output", "completed_at", "incomplete_details", "usage"}
    first = created["response"]
    assert {k: v for k, v in first.items() if k not in changing} == {
        k: v for k, v in last["response"].items() if k not in changing
    }
    response: Json = last["response"]
    return response


def _check_item(item: Json, events: Sequence[Json]) -> None:
    added, *inner, done = events
    kind = item["type"]
    assert (added["type"], done["type"]) == ("response.output_item.added", "response.output_item.done")
    assert done["item"] == item
    assert added["item"]["id"] == item["id"]
    assert all(event["item_id"] == item["id"] for event in inner)
    names = [event["type"].removeprefix("response.") for event in inner]
    text, name = "".join(event["delta"] for event in inner if event["type"].endswith(".delta")), DELTAS[kind]
    if kind == "function_call":
        assert names == [f"{name}.delta"] * (len(names) - 1) + [f"{name}.done"]
        assert text == item["arguments"] == inner[-1]["arguments"]
        return
    assert names == ["content_part.added", *[f"{name}.delta"] * (len(names) - 3), f"{name}.done", "content_part.done"]
    assert text == inner[-2]["text"] == item["content"][0]["text"]
    assert inner[-1]["part"] == item["content"][0]
    if kind == "message":
        scores = [score for event in inner[1:-2] for score in event["logprobs"]]
        whole = item["content"][0]["logprobs"]
        assert scores == whole[: len(scores)]
        assert inner[-2]["logprobs"] == whole
