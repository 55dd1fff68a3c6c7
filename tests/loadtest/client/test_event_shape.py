"""The quick path compared with the parser: both make the same answer of any stream, however it is cut."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.client.event_shape import EventShape
from loadtest.client.streamed_answer import MAX_SHAPES, StreamedAnswer

HEAD = '"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m"'


def line(text: str, count: int | None = None, more: str = "") -> bytes:
    """An event as the gateway writes it; `text` as it stands in the JSON."""
    usage = "null" if count is None else usage_of(count)
    delta = '{"content":"' + text + '"}'
    rest = f'"logprobs":null,"finish_reason":null{more}'
    return (f'data: {{{HEAD},"choices":[{{"index":0,"delta":{delta},{rest}}}],"usage":{usage}}}').encode()


def usage_of(count: int) -> str:
    return f'{{"prompt_tokens":48,"completion_tokens":{count},"total_tokens":{count + 48}}}'


def sure_shape_of(data: bytes) -> EventShape:
    shape = EventShape.of(data, json.loads(data.removeprefix(b"data: ")))
    assert shape is not None
    return shape


@pytest.mark.parametrize("text", ["b", " the", "0" * 22, "%d", "é", "日本", "{", "]}"])
def test_another_plain_text_and_the_next_count_are_of_the_same_shape(text: str) -> None:
    more = ',"note":"5% d %d %%"'  # no place for a count
    assert sure_shape_of(line("a", 1, more)).matches(line(text, 2, more), 2)
    assert sure_shape_of(line("a")).matches(line(text), 2)


@pytest.mark.parametrize("usage", ['"total_tokens":%d,"completion_tokens":%d', '"completion_tokens":%d'])
def test_totals_may_come_before_or_after_the_count_or_not_at_all(usage: str) -> None:
    first, second = (
        line("a").replace(b'"usage":null', ('"usage":{"prompt_tokens":48,' + usage % each + "}").encode())
        for each in ([(49, 1), (50, 2)] if "total" in usage else [(1,), (2,)])
    )
    assert sure_shape_of(first).matches(second, 2)


# The same answer either way


@dataclass(slots=True)
class CountingAnswer(StreamedAnswer):
    parsed: int = 0

    def _event(self, line: bytes, at: float) -> None:
        self.parsed += 1
        StreamedAnswer._event(self, line, at)


@pytest.mark.parametrize(
    ("counts", "parsed", "shapes_left"),
    [(range(1, 257), 1, MAX_SHAPES - 1), (range(2, 60, 2), 29, 0)],
    ids=["usual", "a server whose events are never alike"],
)
def test_a_usual_stream_is_parsed_once_and_few_shapes_are_tried(counts: range, parsed: int, shapes_left: int) -> None:
    answer = CountingAnswer()
    answer.head(200, {})
    for count in counts:
        answer.body(line(f" w{count}", count) + b"\n\n", float(count))
    assert (answer.counts, answer.times) == (list(counts), [float(count) for count in counts])
    assert (answer.completion_tokens, answer.prompt_tokens) == (counts[-1], 48)
    assert (answer.parsed, answer._shapes_left) == (parsed, shapes_left)


Outcome = tuple[object, ...]


def read(pieces: Sequence[bytes], answer: StreamedAnswer) -> Outcome:
    """All fields of an answer, and the exception that ended its reading, as a stream of no OpenAI server may do."""
    answer.head(200, {})
    raised: type[Exception] | None = None
    try:
        for number, piece in enumerate(pieces, start=1):
            answer.body(piece, float(number))
        answer.end()
    except (AttributeError, TypeError, ValueError) as exc:
        raised = type(exc)
    fields = (answer.times, answer.counts, answer.is_counted, answer.finish_reason, answer.finished_at)
    return *fields, answer.prompt_tokens, answer.completion_tokens, answer.error, answer.is_complete, raised


def cut(stream: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


ESCAPED = [
    "",
    "\\n",
    '"',
    '","x":"',
    "\\u0041",
    "\n",
    "\t",
    "\x00",
    "\x7f",
]  # not plain: JSON escapes them, or ends there
ODD = [
    *(line(text, 2) for text in ESCAPED),
    line("b", 3),  # two tokens in one event
    line("b", 1),
    line("b"),
    line("b", 2, ',"token_ids":[7]'),
    line("b", 2, ',"message":{"content":"a"}'),
    line("b", 2).replace(b'"finish_reason":null', b'"finish_reason":"length"'),
    line("b", 2).replace(b'"id":"chatcmpl-1"', b'"id":"chatcmpl-2"'),
    line("b", 2).replace(b'"model":"m"', b'"model":"\\u006d"'),
    line("b", 2).replace(b'"model":"m"', b'"model":"completion_tokens"'),
    line("b", 2).replace(b'"completion_tokens":2', b'"completion_tokens":2.0'),
    line("b", 2).replace(b'"prompt_tokens":48', b'"prompt_tokens":null'),
    line("b", 2).replace(b'"delta":{"content":"b"}', b'"delta":{"reasoning":"b"}'),
    line("b", 2)[:-1],
    line("~", 2).replace(b"~", b"\xff"),  # no UTF-8
    line("b", 2) + b"}",
    b'data: {"choices":[]}',
]


@pytest.mark.parametrize("odd", ODD)
def test_an_event_that_differs_anywhere_is_read_by_the_parser_and_leads_to_no_shape_that_misreads(odd: bytes) -> None:
    """Before the usual events, where a shape might be made of it, and after them, where it might be taken for one."""
    for events in ([odd, line("a", 3), line("b", 4)], [line("a", 1), odd, line("c", 3)]):
        pieces = [event + b"\n\n" for event in events]
        assert read(pieces, StreamedAnswer()) == read(pieces, StreamedAnswer(_shapes_left=0))


JSON_TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)[1:-1]),
    st.sampled_from([" the", "a", "", "%", '\\"', "\\n", "\\u00e9", '"content\\":\\"x', "data: "]),
)
CHUNKS: Sequence[Mapping[str, object]] = (
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"reasoning_content": "hm"}}]},
    {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": None},
    {"choices": [], "usage": {"prompt_tokens": 48, "completion_tokens": 9, "total_tokens": 57}},
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
    {"choices": [{"delta": {"content": ["a"]}}]},
    {"error": {"message": "engine died"}},
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Mostly tokens that count on by one, with or without usage, and between them all other events."""
    count, lines = 0, []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["counted"] * 6 + ["plain"] * 3 + ["bundled", "details", "other"]))
        if kind == "other":
            lines.append(b"data: " + json.dumps(draw(st.sampled_from(CHUNKS)), separators=(",", ":")).encode())
            continue
        count += 2 if kind == "bundled" else 1
        more = ',"token_ids":[1]' if kind == "details" else ""
        lines.append(line(draw(JSON_TEXT), None if kind == "plain" else count, more))
    end = draw(st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n"]))
    return b"".join(each + end for each in [*lines, b"data: [DONE]"])


@settings(max_examples=600, deadline=None)
@given(
    streams(),
    st.lists(st.integers(0, 5000), max_size=12),
    st.one_of(st.just([]), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=6)),
)
def test_quick_path_and_parser_agree_on_any_stream_cut_anywhere_and_damaged(
    stream: bytes, places: Sequence[int], damage: Sequence[tuple[int, int]]
) -> None:
    broken = bytearray(stream)
    for place, byte in damage:
        broken[place % len(broken)] = byte
    pieces = cut(bytes(broken), places)
    assert read(pieces, StreamedAnswer()) == read(pieces, StreamedAnswer(_shapes_left=0))
