"""Text to bytes, as tables: no loop, no sockets."""

import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.core import FinishReason, TokenLogprob
from gateway.language import CallArguments, CallStart, Content, Part, Reasoning
from gateway.openai.frames import (
    CHAT,
    TEXT_COMPLETION,
    AnswerHead,
    DetailedStream,
    Dialect,
    Extras,
    Fold,
    Stream,
)
from gateway.wire.answer import ChoiceGroup, FirstCall, Frames, Usage
from gateway.wire.logprobs import ChatScores, Details, TextScores
from tests.openai.streams import Json, read_events

NASTY = 'quote " backslash \\ newline \n tab \t nul \0 line-separator \u2028 emoji \U0001f600 %b %d </script>'
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def group() -> ChoiceGroup:
    return ChoiceGroup(choices=1, prompt_tokens=3)


def head(dialect: Dialect, model: str = "tiny") -> AnswerHead:
    return AnswerHead(dialect, "abc", 1700000000, model)


def run(frames: Frames, texts: Sequence[str]) -> bytes:
    pieces = [frames.open(), *map(frames.text, texts), frames.close(FinishReason.LENGTH, 5)]
    return b"".join(pieces)


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
    frames = Stream(head(dialect), 0, group(), include_usage=include_usage)
    more: dict[str, object] = {"usage": None} if include_usage else {}
    expected: list[object] = [chunk(kind, request_id, choice, **more) for choice in choices]
    if include_usage:
        expected.append(chunk(kind, request_id, [], usage=USAGE))
    assert read_events(run(frames, ["Pa", "", "ris"])) == expected
    assert frames.content_type.startswith(b"text/event-stream")


MESSAGE = {"role": "assistant", "content": "Paris", "refusal": None}
WHOLE_CHAT = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("dialect", "kind", "request_id", "choice"),
    [
        (CHAT, "chat.completion", "chatcmpl-abc", WHOLE_CHAT),
        (TEXT_COMPLETION, "text_completion", "cmpl-abc", text_choice("Paris", "length")),
    ],
    ids=["chat", "text"],
)
def test_a_folded_answer_is_one_object(dialect: Dialect, kind: str, request_id: str, choice: object) -> None:
    frames = Fold(head(dialect), 0, group())
    assert (frames.open(), frames.text("Pa"), frames.text("")) == (b"", b"", b""), "nothing is sent before the end"
    whole = frames.text("ris") + frames.close(FinishReason.LENGTH, 5)
    assert orjson.loads(whole) == chunk(kind, request_id, [choice], usage=USAGE)
    assert frames.content_type == b"application/json"


@pytest.mark.parametrize("dialect", [CHAT, TEXT_COMPLETION], ids=["chat", "text"])
def test_any_text_and_any_model_name_survive_encoding(dialect: Dialect) -> None:
    model = 'we"ird%b\\model%'
    streamed = read_events(run(Stream(head(dialect, model), 0, group(), include_usage=False), [NASTY]))
    texts = [choice.get("text", choice.get("delta", {}).get("content")) for choice in choices_of(streamed)]
    assert "".join(filter(None, texts)) == NASTY
    folded = orjson.loads(run(Fold(head(dialect, model), 0, group()), [NASTY]))
    assert folded["model"] == model
    choice = folded["choices"][0]
    assert (choice["text"] if dialect is TEXT_COMPLETION else choice["message"]["content"]) == NASTY


def choices_of(answers: list[Json]) -> list[Json]:
    return [choice for answer in answers for choice in answer["choices"]]


class ScriptedParser:
    """Returns `parts` for the first text, whatever that is."""

    has_called = True

    def __init__(self, *parts: Part) -> None:
        self._parts = list(parts)

    def feed(self, text: str) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def flush(self) -> list[Part]:
        return [Content("!")]


FOUND = (
    Reasoning("hm"), Content("Let me see"), CallStart(0, "call_a", "f"), CallArguments(0, '{"x":'),
    CallArguments(0, "1}"), CallStart(1, "call_b", "g"),
)  # fmt: skip


def call_piece(index: int, **fields: object) -> tuple[dict[str, object], None]:
    return {"tool_calls": [{"index": index, **fields}]}, None


def test_calls_and_reasoning_leave_each_as_openai_sends_it() -> None:
    extras = Extras(Details(None), ScriptedParser(*FOUND))
    frames = DetailedStream(head(CHAT), 0, group(), extras, include_usage=False)
    raw = frames.open() + frames.text("...") + frames.close(FinishReason.STOP, 5)
    deltas = [(choice["delta"], choice["finish_reason"]) for choice in choices_of(read_events(raw))]
    assert deltas[1:] == [
        ({"reasoning": "hm"}, None),
        ({"content": "Let me see"}, None),
        call_piece(0, id="call_a", type="function", function={"name": "f", "arguments": ""}),
        call_piece(0, function={"arguments": '{"x":'}),
        call_piece(0, function={"arguments": "1}"}),
        call_piece(1, id="call_b", type="function", function={"name": "g", "arguments": ""}),
        ({"content": "!"}, None),
        ({}, "tool_calls"),
    ]


def test_later_calls_are_dropped_where_one_was_to_be_made() -> None:
    parser = FirstCall(ScriptedParser(*FOUND))
    frames = Fold(head(CHAT), 0, group(), Extras(Details(None), parser))
    frames.text("...")
    choice = orjson.loads(frames.close(FinishReason.STOP, 5))["choices"][0]
    assert (choice["message"]["tool_calls"], choice["finish_reason"]) == (CALLS[:1], "tool_calls")


CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
    {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": ""}},
]


@pytest.mark.parametrize(
    ("extras", "reason", "calls", "finish"),
    [
        ({}, FinishReason.STOP, CALLS, "tool_calls"),
        ({"names_calls": False}, FinishReason.STOP, CALLS, "stop"),  # a call of the one function that was asked for
        ({}, FinishReason.LENGTH, CALLS, "length"),
    ],
)
def test_folded_calls_are_whole(extras: Any, reason: FinishReason, calls: object, finish: str) -> None:  # Any: keywords
    parser = ScriptedParser(*FOUND)
    frames = Fold(head(CHAT), 0, group(), Extras(Details(None), parser, reasoning=b"reasoning_content", **extras))
    frames.text("...")
    choice = orjson.loads(frames.close(reason, 5))["choices"][0]
    assert choice["finish_reason"] == finish
    assert choice["message"] == {
        "role": "assistant", "content": "Let me see!", "refusal": None, "reasoning_content": "hm", "tool_calls": calls,
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
def test_the_last_choice_ends_the_answer_and_its_usage_counts_all(stream: bool) -> None:
    shared = ChoiceGroup(choices=2, prompt_tokens=3)
    answer = head(TEXT_COMPLETION)
    first, second = (
        Stream(answer, index, shared, include_usage=True) if stream else Fold(answer, index, shared) for index in (0, 1)
    )
    raw = second.text("b") + first.text("a") + second.close(FinishReason.STOP, 2)
    assert b"[DONE]" not in raw
    raw += first.close(FinishReason.LENGTH, 3)
    found = read_events(raw) if stream else [orjson.loads(raw)]
    choices = choices_of(found)
    texts = {index: "".join(c["text"] for c in choices if c["index"] == index) for index in (0, 1)}
    assert texts == {0: "a", 1: "b"}
    assert found[-1]["usage"] == USAGE
    if not stream:
        assert [choice["index"] for choice in choices] == [0, 1]


def spell(token_id: int) -> bytes:
    return {7: b"Pa", 8: "é".encode()[:1], 6: "é".encode()[1:], 9: b"<|end|>"}[token_id]


ENTRIES = [TokenLogprob(7, -0.5, ((7, -0.5), (9, -1.0))), TokenLogprob(8, -2.0, ((7, -0.25), (8, -2.0)))]


def test_log_probabilities_of_a_chat_show_every_token_and_its_bytes() -> None:
    details = Details(ChatScores(spell))
    details.score(ENTRIES)
    details.show([7, 8])
    logprobs = orjson.loads(details.take_logprobs())
    content = logprobs.pop("content")
    assert logprobs == {"refusal": None}
    chosen = {"token": "Pa", "logprob": -0.5, "bytes": [80, 97]}
    other = {"token": "<|end|>", "logprob": -1.0, "bytes": list(b"<|end|>")}
    assert content[0] == {**chosen, "top_logprobs": [chosen, other]}
    assert (content[1]["token"], content[1]["bytes"]) == ("", [0xC3])  # the rest of its character is to come
    assert content[1]["top_logprobs"][1]["token"] == ""  # the same token, shown alike
    assert details.take_logprobs() == b"null"


def test_log_probabilities_of_a_completion_have_offsets_into_the_whole_text() -> None:
    details = Details(TextScores(spell), prompt_left=1 + len(ENTRIES))
    details.score([TokenLogprob(7, None)])  # a long prompt's come in several calls
    details.score(ENTRIES)
    assert orjson.loads(details.take_logprobs()) == {
        "text_offset": [0, 2, 4],
        "token_logprobs": [None, -0.5, -2.0],
        "tokens": ["Pa", "Pa", ""],
        "top_logprobs": [None, {"Pa": -0.5, "<|end|>": -1.0}, {"": -2.0, "Pa": -0.25}],
    }
    details.score([TokenLogprob(6, -0.125), TokenLogprob(7, -0.25)])
    details.show([6, 7])
    after = orjson.loads(details.take_logprobs())
    assert (after["tokens"], after["text_offset"]) == (["é", "Pa"], [4, 5])


def test_an_alternative_that_is_part_of_a_character_is_a_replacement() -> None:
    details = Details(ChatScores(spell))
    details.score([TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.0)))])
    details.show([7])
    (entry,) = orjson.loads(details.take_logprobs())["content"]
    assert [(top["token"], top["bytes"]) for top in entry["top_logprobs"]] == [("Pa", [80, 97]), ("\ufffd", [0xC3])]


@pytest.mark.parametrize("form", [ChatScores, TextScores])
def test_log_probabilities_of_a_long_answer_are_not_left_to_its_end(form: type[ChatScores | TextScores]) -> None:
    details, top = Details(form(spell)), tuple((token_id, -1.0) for token_id in (6, 7, 8, 9) * 5)
    start = time.process_time()
    for _ in range(5_000):
        details.score([TokenLogprob(7, -1.0, top)])
        details.show([7])
    middle = time.process_time()
    details.take_logprobs()
    assert time.process_time() - middle < (middle - start) / 5


def test_a_token_without_any_probability_has_a_number_that_json_knows() -> None:
    details = Details(ChatScores(spell))
    details.score([TokenLogprob(7, float("-inf"))])
    details.show([7])
    assert orjson.loads(details.take_logprobs())["content"][0]["logprob"] == -9999.0


def test_details_leave_with_the_next_chunk_and_the_rest_with_the_last() -> None:
    details = Details(ChatScores(spell), wants_ids=True)
    frames = DetailedStream(head(CHAT), 0, group(), Extras(details, prompt_ids=(1, 2)), include_usage=False)
    raw = frames.open()
    details.score(ENTRIES)
    details.show([7])
    raw += frames.text("")
    raw += frames.text("Pa")
    details.show([8])
    raw += frames.close(FinishReason.STOP, 2)
    first, *others = read_events(raw)
    assert first["prompt_token_ids"] == [1, 2]
    assert all("prompt_token_ids" not in other for other in others)
    _, text, last = choices_of([first, *others])
    assert (text["token_ids"], [entry["token"] for entry in text["logprobs"]["content"]]) == ([7], ["Pa"])
    assert (last["token_ids"], len(last["logprobs"]["content"]), last["finish_reason"]) == ([8], 1, "stop")


def test_token_ids_of_a_whole_answer() -> None:
    details = Details(None, wants_ids=True)
    frames = Fold(head(CHAT), 0, group(), Extras(details, prompt_ids=(1, 2)))
    details.show([7, 8])
    answer = orjson.loads(frames.close(FinishReason.STOP, 2))
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([1, 2], [7, 8])


def test_token_ids_of_a_completion_come_with_those_of_its_own_prompt() -> None:
    details = Details(None, wants_ids=True, prompt_ids=(1, 2))
    frames = DetailedStream(head(TEXT_COMPLETION), 0, group(), Extras(details), include_usage=False)
    details.show([7])
    first, last = choices_of(read_events(frames.open() + frames.text("Pa") + frames.close(FinishReason.STOP, 1)))
    assert (first["prompt_token_ids"], first["token_ids"]) == ([1, 2], [7])
    assert "prompt_token_ids" not in last


def test_usage_so_far_is_in_every_chunk_where_it_is_wanted() -> None:
    used = iter([Usage(3, 1), Usage(3, 1), Usage(3, 2)])
    extras = Extras(Details(None), count=lambda: next(used))
    frames = DetailedStream(head(CHAT), 0, group(), extras, include_usage=True)
    streamed = read_events(frames.open() + frames.text("Pa") + frames.close(FinishReason.STOP, 2))
    counts = [event["usage"]["completion_tokens"] for event in streamed]
    assert counts == [0, 1, 2, 2]


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
def test_an_echoed_prompt_comes_before_the_text(stream: bool) -> None:
    answer, extras = head(TEXT_COMPLETION), Extras(Details(None), echo="Once upon")
    frames: Frames = (
        DetailedStream(answer, 0, group(), extras, include_usage=False) if stream else Fold(answer, 0, group(), extras)
    )
    raw = run(frames, [" a", " time"])
    found = read_events(raw) if stream else [orjson.loads(raw)]
    assert "".join(choice["text"] for choice in choices_of(found)) == "Once upon a time"
