"""The parts that each format's parser reads from an answer; they are the same however the text is cut."""

import json
import random
import re
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import TypeAlias

import pytest

from gateway.language.reply_parser import make_parser
from gateway.language.reply_parts import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser
from gateway.language.tool_formats import ToolFormat
from gateway.language.tool_guide import Forced

# A merged part: text of a kind, or a call's name with the arguments' text.
Merged: TypeAlias = tuple[str, str] | tuple[str, str, str]

HERMES, LLAMA, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.MISTRAL
FORMATS = (None, HERMES, LLAMA, MISTRAL)


def unchanged(*texts: str) -> list[tuple[str, list[Merged]]]:
    return [(text, [("content", text)]) for text in texts]


def merge(parts: Iterable[Part]) -> list[Merged]:
    """Joins parts of one kind, and drops the ids of calls."""
    merged: list[Merged] = []
    for kind, same in groupby(parts, key=lambda part: (type(part), getattr(part, "index", None))):
        group = list(same)
        if kind[0] is CallArguments:
            *before, call = merged
            assert call[0] == "call"
            arguments = "".join(part.text for part in group if isinstance(part, CallArguments))
            merged = [*before, ("call", call[1], arguments)]
        elif kind[0] is CallStart:
            merged += [("call", part.name, "") for part in group if isinstance(part, CallStart)]
        else:
            text = "".join(part.text for part in group if isinstance(part, Content | Reasoning))
            merged.append((kind[0].__name__.lower(), text))
    return merged


def parse(parser: ReplyParser, pieces: Iterable[str]) -> list[Merged]:
    return merge([part for piece in pieces for part in parser.feed(piece)] + parser.flush())


def cuts(text: str) -> Iterable[Sequence[str]]:
    yield list(text)
    for split in range(len(text) + 1):
        yield [text[:split], text[split:]]


def cut_anywhere(text: str, rng: random.Random) -> Sequence[str]:
    borders = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(rng.randint(0, 12)))})
    return [text[start:end] for start, end in pairwise(borders)]


WEATHER = '{"city": "Paris"}'

HERMES_ANSWERS: list[tuple[str, list[Merged]]] = [
    ("Hello there.", [("content", "Hello there.")]),
    ("", []),
    (" \n", [("content", " \n")]),
    (f'<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>', [("call", "weather", WEATHER)]),
    (f'<tool_call>{{"arguments":{WEATHER},"name":"weather"}}</tool_call>', [("call", "weather", WEATHER)]),
    (f'<tool_call>{{"name":"weather","parameters":{WEATHER}}}</tool_call>', [("call", "weather", WEATHER)]),
    (
        'I.\n<tool_call>\n{"name": "a"}\n</tool_call>\n<tool_call>{"name": "b", "arguments": [{"y": "}"}]}</tool_call>',
        [("content", "I.\n"), ("call", "a", "{}"), ("call", "b", '[{"y": "}"}]')],
    ),
    ('<tool_call>\n{"name": "a", "arguments": {"x": 1}}', [("call", "a", '{"x": 1}')]),
    ('<tool_call>\n{"name": "a", "arguments": {"x": 1', [("call", "a", '{"x": 1')]),
    ('<tool_call>\n{"name": "a", "arguments": {"x": "\\', [("call", "a", '{"x": "\\')]),
    ('<tool_call>\n{"name": "a", "arguments": "x\\', [("call", "a", '"x\\')]),
    ('<tool_call>\n{"name": "a", "arg', [("content", '<tool_call>\n{"name": "a", "arg')]),
    ('<tool_call>\n{"name": "now"}\n</tool_call>', [("call", "now", "{}")]),
    (
        '<tool_call>{"id": 7, "name": "a", "x": {"name": "b"}, "arguments": null, "z": [","]}</tool_call>',
        [("call", "a", "null")],
    ),
    ('<tool_call>{"name": "a", "arguments": "x", "name": "b", "arguments": {}}</tool_call>', [("call", "a", '"x"')]),
    ('<tool_call>{"arguments": {}, "name": "a", "name": "b"}</tool_call>', [("call", "a", "{}")]),
    ('<tool_call>{"a\nb": "\\\n", "name": "a", "arguments": ["\\\n]"]}</tool_call>', [("call", "a", '["\\\n]"]')]),
    ('<tool_call>{"name": "a", "arguments": -1.5e3}</tool_call>', [("call", "a", "-1.5e3")]),
    (
        '<tool_call>{"na\\u006de": "gr\\u00fc\\u00dfe", "arguments": {"\\"": "\\\\"}}</tool_call>',
        [("call", "grüße", '{"\\"": "\\\\"}')],
    ),
    (
        '<tool_call>{"name": "写", "arguments": {"文": "日本\U0001f6d1"}}</tool_call>',
        [("call", "写", '{"文": "日本\U0001f6d1"}')],
    ),
    (
        '<tool_call>{"name": "a", "arguments": {"x": "</tool_call>"}}</tool_call>',
        [("call", "a", '{"x": "</tool_call>"}')],
    ),
    ('<tool_call>{"name": "a", "arguments": {"x":\n "a\nb"  }  }  </tool_call>', [("call", "a", '{"x":\n "a\nb"  }')]),
    # Not quite right, and still calls: a brace too few, two too few, a comma too many.
    ('<tool_call>{"name": "a", "arguments": {"x": 1}</tool_call>.', [("call", "a", '{"x": 1}'), ("content", ".")]),
    (
        '<tool_call>{"name": "a", "arguments": {"x": 1</tool_call><tool_call>{"name": "b"}</tool_call>',
        [("call", "a", '{"x": 1'), ("call", "b", "{}")],
    ),
    ('<tool_call>{"name": "a", "arguments": {},}</tool_call>', [("call", "a", "{}")]),
    ('<tool_call>{"name": "a", "arguments": {}}} ok', [("call", "a", "{}"), ("content", "} ok")]),
    ('<tool_call>{"name": "a", "arguments": {}}</tool_call>\n\nDone.', [("call", "a", "{}"), ("content", "\n\nDone.")]),
    ('\n<tool_call>{"name": "a"}</tool_call>Done.', [("call", "a", "{}"), ("content", "Done.")]),
    ('\n\n<tool_call>{"name": "a", "arguments": {}}</tool_call>', [("call", "a", "{}")]),
    # No calls.
    *unchanged(
        "a <tool_call b", "use <tool_call> like that", "<tool_call>", "<tool_call>{}</tool_call>",
        '<tool_call>{"arguments": {"x": 1}}</tool_call>', '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a\\ud83d", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "\\x", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a", "arguments": }</tool_call>', '<tool_call>{"name": "a" "arguments": {}}</tool_call>',
        "<tool_call>{'name': 'a', 'arguments': {}}</tool_call>",
        '<tool_call>[{"name": "a", "arguments": {}}]</tool_call>', '{"name": "a", "arguments": {}}', "</tool_call>",
    ),
    (
        '<tool_call>{"no": 1}</tool_call><tool_call>{"name": "a"}</tool_call>',
        [("content", '<tool_call>{"no": 1}</tool_call>'), ("call", "a", "{}")],
    ),
    ('<tool_call><tool_call>{"name": "a"}', [("content", "<tool_call>"), ("call", "a", "{}")]),
    ('<<tool_call>{"name": "a"}', [("content", "<"), ("call", "a", "{}")]),
]  # fmt: skip

LLAMA_ANSWERS: list[tuple[str, list[Merged]]] = [
    ("Hello there.", [("content", "Hello there.")]),
    (f'{{"name": "weather", "parameters": {WEATHER}}}', [("call", "weather", WEATHER)]),
    (f'\n {{"name": "weather", "arguments": {WEATHER}}}\n', [("call", "weather", WEATHER)]),
    (f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}', [("call", "weather", WEATHER)]),
    (
        f'<|python_tag|> {{"type": "function", "name": "weather", "parameters": {WEATHER}}}',
        [("call", "weather", WEATHER)],
    ),
    ('<|python_tag|>{"name": "now"}', [("call", "now", "{}")]),
    (
        '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": ";"}};{"name": "c", "parameters": {}}',
        [("call", "a", "{}"), ("call", "b", '{"x": ";"}'), ("call", "c", "{}")],
    ),
    ('{"name": "a", "parameters": {}}\n{"name": "b", "parameters": {}}', [("call", "a", "{}"), ("call", "b", "{}")]),
    ('{"name": "a", "parameters": {}} and so on', [("call", "a", "{}"), ("content", " and so on")]),
    ('{"name": "a", "parameters": {}}; {"x": 1}', [("call", "a", "{}"), ("content", '; {"x": 1}')]),
    *unchanged(
        '{"name": "Ann", "age": 40}', '{"answer": {"name": "a", "parameters": {}}}',
        'Sure: {"name": "a", "parameters": {}}', '<|python_tag|>brave_search.call(query="{}")', "<|python_tag|>",
        "<|python", '[{"name": "a", "parameters": {}}]', "{", "{}",
    ),
]  # fmt: skip

MISTRAL_ANSWERS: list[tuple[str, list[Merged]]] = [
    ("Hello there.", [("content", "Hello there.")]),
    (f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}]', [("call", "weather", WEATHER)]),
    (f'[TOOL_CALLS] [{{"arguments": {WEATHER}, "name": "weather"}}]', [("call", "weather", WEATHER)]),
    (
        'So.[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": [[]]}}]',
        [("content", "So."), ("call", "a", "{}"), ("call", "b", '{"x": [[]]}')],
    ),
    ('[TOOL_CALLS][{"name": "a", "arguments": {}}', [("call", "a", "{}")]),
    ('[TOOL_CALLS][{"name": "a"}, {"no": 1}]!', [("call", "a", "{}"), ("content", ', {"no": 1}]!')]),
    (f'[TOOL_CALLS]{{"name": "weather", "arguments": {WEATHER}}}', [("call", "weather", WEATHER)]),
    (f"[TOOL_CALLS]weather[ARGS]{WEATHER}", [("call", "weather", WEATHER)]),
    (f"[TOOL_CALLS]weather{WEATHER}", [("call", "weather", WEATHER)]),
    (f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{WEATHER}", [("call", "weather", WEATHER)]),
    (
        'Two.[TOOL_CALLS]a[ARGS]{"x": "[TOOL_CALLS]"}[TOOL_CALLS]b-2[ARGS]{}',
        [("content", "Two."), ("call", "a", '{"x": "[TOOL_CALLS]"}'), ("call", "b-2", "{}")],
    ),
    ("[TOOL_CALLS]a[ARGS]{}\nDone.", [("call", "a", "{}"), ("content", "\nDone.")]),
    *unchanged(
        "[TOOL", "[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS][1]", "[TOOL_CALLS]a[ARGS]", "[TOOL_CALLS]a[ARGS]no",
        "[TOOL_CALLS]a[ARG]{}", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS]{}", "a[ARGS]{}",
    ),
]  # fmt: skip

ARRAYS: list[tuple[Forced, str, list[Merged]]] = [
    (Forced(), f'[{{"name": "weather", "parameters": {WEATHER}}}]', [("call", "weather", WEATHER)]),
    (
        Forced(),
        '\n[ {"name":"a","parameters":{}} ,\n{"name":"b","parameters":{"x":"]"}} ]\n',
        [("call", "a", "{}"), ("call", "b", '{"x":"]"}')],
    ),
    (Forced(), '[{"name": "a", "parameters": {"x"', [("call", "a", '{"x"')]),
    (Forced(), '[{"name": "a"', []),  # cut off, and no text for anyone
    (Forced(), '[{"name": "a", "parameters": {}}, {"na', [("call", "a", "{}")]),
    (Forced(), "I would rather not.", [("content", "I would rather not.")]),
]
NAMED = Forced("weather")
ARGUMENTS: list[tuple[Forced, str, list[Merged]]] = [
    (Forced("weather"), WEATHER, [("call", "weather", WEATHER)]),
    (Forced("weather"), f" {WEATHER}\n", [("call", "weather", WEATHER)]),
    (Forced("weather"), '{"city": "Par', [("call", "weather", '{"city": "Par')]),
    (Forced("weather"), "Sunny.", [("content", "Sunny.")]),
    (Forced("weather"), "", []),
]

CALLS: list[tuple[str, list[Merged]]] = [
    (f'{{"name": "weather", "arguments": {WEATHER}}}', [("call", "weather", WEATHER)]),
    (f'\n{{"name":"weather","parameters":{WEATHER}}}\n', [("call", "weather", WEATHER)]),
    ('{"name": "weather", "arguments": {"city": "Par', [("call", "weather", '{"city": "Par')]),
    ('{"name": "weather", "argum', []),
    ("", []),
    ("Sunny.", [("content", "Sunny.")]),
]

REASONED_ANSWERS: list[tuple[bool, str, list[Merged]]] = [
    (False, "<think>Hm.</think>Yes.", [("reasoning", "Hm."), ("content", "Yes.")]),
    (False, "\n<think>\nHm.\n</think>\n\nYes.", [("reasoning", "\nHm.\n"), ("content", "\n\nYes.")]),
    (False, "<think>Hm.", [("reasoning", "Hm.")]),
    (False, "<think>Hm.</thi", [("reasoning", "Hm.</thi")]),
    (False, "<think></think>", []),
    (False, " Yes. <think>No.</think>", [("content", " Yes. <think>No.</think>")]),
    (False, "<thinking>", [("content", "<thinking>")]),
    (False, "Yes.</think>", [("content", "Yes.</think>")]),
    (True, "Hm.</think>Yes.", [("reasoning", "Hm."), ("content", "Yes.")]),
    (True, "\nHm.", [("reasoning", "\nHm.")]),
    (True, "\n<think>Hm.</think>Yes.", [("reasoning", "Hm."), ("content", "Yes.")]),
    (True, "</think>\n", [("content", "\n")]),
]


@pytest.mark.parametrize(
    ("format_", "text", "expected"),
    [(HERMES, *answer) for answer in HERMES_ANSWERS]
    + [(LLAMA, *answer) for answer in LLAMA_ANSWERS]
    + [(MISTRAL, *answer) for answer in MISTRAL_ANSWERS]
    + [(None, *answer) for answer in [("<tool_call>{}", [("content", "<tool_call>{}")]), ("\n", [("content", "\n")])]],
)
def test_answer_has_the_same_parts_wherever_it_is_cut(
    format_: ToolFormat | None, text: str, expected: list[Merged]
) -> None:
    assert parse(make_parser(format_), [text]) == expected
    for pieces in cuts(text):
        assert parse(make_parser(format_), pieces) == expected


@pytest.mark.parametrize(
    ("format_", "forced", "text", "expected"),
    [(format_, *answer) for format_ in (None, MISTRAL) for answer in ARRAYS]
    + [(None, *answer) for answer in ARGUMENTS]
    + [(format_, forced, *answer) for format_ in (HERMES, LLAMA) for forced in (Forced(), NAMED) for answer in CALLS],
)
def test_a_forced_call_is_read_in_the_form_that_its_guide_enforces(
    format_: ToolFormat | None, forced: Forced, text: str, expected: list[Merged]
) -> None:
    for pieces in cuts(text):
        assert parse(make_parser(format_, forced=forced), pieces) == expected


@pytest.mark.parametrize(("starts_in_reasoning", "text", "expected"), REASONED_ANSWERS)
def test_reasoning_is_separated_from_content(starts_in_reasoning: bool, text: str, expected: list[Merged]) -> None:
    for format_ in FORMATS:
        for pieces in cuts(text):
            parser = make_parser(format_, reasoning=True, starts_in_reasoning=starts_in_reasoning)
            assert parse(parser, pieces) == expected


@pytest.mark.parametrize(
    ("format_", "answers"), [(HERMES, HERMES_ANSWERS), (LLAMA, LLAMA_ANSWERS), (MISTRAL, MISTRAL_ANSWERS)]
)
def test_calls_after_reasoning_are_read_as_without_it(
    format_: ToolFormat, answers: list[tuple[str, list[Merged]]], rng: random.Random
) -> None:
    thought = 'May I call <tool_call>{"name": "a"}</tool_call>?'
    for text, expected in answers:
        pieces = cut_anywhere(f"{thought}</think>{text}", rng)
        parser = make_parser(format_, reasoning=True, starts_in_reasoning=True)
        assert parse(parser, pieces) == [("reasoning", thought), *expected]


def test_guided_answer_does_not_start_in_reasoning() -> None:
    parser = make_parser(HERMES, forced=Forced("weather"), reasoning=True, starts_in_reasoning=True)
    assert parse(parser, [f'{{"name": "weather", "arguments": {WEATHER}}}']) == [("call", "weather", WEATHER)]


def test_has_called_once_a_call_has_begun() -> None:
    parser = make_parser(HERMES)
    parser.feed('<tool_call>{"name": "a"')
    assert not parser.has_called
    parser.feed(', "arguments": {')
    assert parser.has_called


def test_calls_are_counted_and_each_has_an_id_of_its_own() -> None:
    parts = make_parser(HERMES).feed('<tool_call>{"name": "a"}</tool_call>' * 3)
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [start.index for start in starts] == [0, 1, 2]
    assert len({start.call_id for start in starts}) == 3
    assert all(re.fullmatch("call_[0-9a-f]{24}", start.call_id) for start in starts)


def test_mistrals_ids_are_nine_alphanumerics() -> None:
    forced = make_parser(MISTRAL, forced=Forced("a")).feed('[{"name": "a", "arguments": {}}]')
    parts = make_parser(MISTRAL).feed("[TOOL_CALLS]a[ARGS]{}") + forced
    ids = [part.call_id for part in parts if isinstance(part, CallStart)]
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-zA-Z]{9}", call_id) for call_id in ids)


@pytest.mark.parametrize(
    ("format_", "pieces", "merged"),
    [
        (HERMES, ["Hello", " <b", ">", "x <tool", "_"], ["Hello", " <b", ">", "x ", ""]),
        (HERMES, ["<tool_call>", ' {"name": "a"', " 5"], ["", "", '<tool_call> {"name": "a" 5']),
        (LLAMA, [" \n", "H", '{"name'], ["", " \nH", '{"name']),
        (LLAMA, ['{"a"', ": 1", ", b"], ["", "", '{"a": 1, b']),
        (MISTRAL, ["[", "TO", "P]"], ["", "", "[TOP]"]),
        (None, ["a", "b"], ["a", "b"]),
    ],
)
def test_text_is_held_while_it_may_be_a_call_and_no_longer(
    format_: ToolFormat | None, pieces: list[str], merged: list[str]
) -> None:
    parser = make_parser(format_)
    seen = ["".join(part.text for part in parser.feed(piece) if isinstance(part, Content)) for piece in pieces]
    assert seen == merged


def test_call_begins_with_its_arguments_and_they_are_passed_on_as_they_arrive() -> None:
    parser = make_parser(HERMES)
    assert parser.feed('<tool_call>{"name": "a", "arguments":') == []
    start, arguments = parser.feed(' {"x": "y')
    assert isinstance(start, CallStart)
    assert (start.name, arguments) == ("a", CallArguments(0, '{"x": "y'))
    assert parser.feed("z") == [CallArguments(0, "z")]
    assert parser.feed('"') == [CallArguments(0, '"')]
    assert parser.feed("}} ") == [CallArguments(0, "}")]
    assert parser.feed("</tool_call>") == []


def test_arguments_before_the_name_are_passed_on_when_it_is_known() -> None:
    parser = make_parser(HERMES)
    assert parser.feed('<tool_call>{"arguments": {"x": 1}, "name": "a') == []
    start, arguments = parser.feed('"')
    assert isinstance(start, CallStart)
    assert arguments == CallArguments(0, '{"x": 1}')


def test_arguments_that_were_passed_on_are_not_kept() -> None:
    parser = make_parser(HERMES)
    parser.feed('<tool_call>{"name": "a", "arguments": "')
    tracemalloc.start()
    for n in range(2_000):
        parser.feed(str(n) * 300)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


def random_value(rng: random.Random, depth: int = 0) -> object:
    if depth < 3 and rng.random() < 0.5:
        items = [random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        return items if rng.random() < 0.4 else {random_text(rng): item for item in items}
    return rng.choice([None, True, rng.randint(-9, 10**6), rng.random(), random_text(rng)])


def random_text(rng: random.Random) -> str:
    return "".join(
        rng.choices(["a", "é", "\U0001f6d1", '"', "\\", "{", "}", "[", "]", "<", "\n", ";", "</tool_call>"], k=4)
    )


def random_call(rng: random.Random, arguments_key: str) -> tuple[str, str, object]:
    """Returns the text of a call object, the call's name and its arguments."""
    name = f"tool_{rng.randint(0, 9)}"
    arguments = {random_text(rng): random_value(rng) for _ in range(rng.randint(0, 4))}
    members = [("name", name), (arguments_key, arguments), *([("x", random_value(rng))] * rng.randint(0, 1))]
    rng.shuffle(members)
    return json.dumps(dict(members), indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5), name, arguments


def random_answer(format_: ToolFormat, calls: Sequence[str]) -> str:
    match format_:
        case ToolFormat.HERMES:
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        case ToolFormat.LLAMA3_JSON:
            return "; ".join(calls)
        case ToolFormat.MISTRAL:
            return f"[TOOL_CALLS][{', '.join(calls)}]"


@pytest.mark.parametrize("format_", list(ToolFormat))
def test_any_well_formed_calls_are_read_however_they_are_cut(format_: ToolFormat, rng: random.Random) -> None:
    key = "parameters" if format_ is LLAMA else "arguments"
    for _ in range(150):
        calls = [random_call(rng, key) for _ in range(rng.randint(1, 3))]
        text = random_answer(format_, [call for call, _, _ in calls])
        merged = parse(make_parser(format_), cut_anywhere(text, rng))
        assert [(part[1], json.loads(part[2])) for part in merged if len(part) == 3] == [call[1:] for call in calls]
        assert all(part[-1] in text for part in merged)


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>",
    '{"name": "a"', '"name"', '"arguments": ', '"parameters": {', '"x"', "{", "}", "[", "]", ":", ",", ";", '"', "\\",
    "\\u00e9", "\\ud83d", " ", "\n", "a", "é", "\U0001f6d1", "<", "0", "-", "null", "\x00",
]  # fmt: skip


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("forced", [None, Forced(), Forced("f")])
def test_any_text_gives_the_same_parts_streamed_or_not_and_loses_nothing_without_calls(
    format_: ToolFormat | None, forced: Forced | None, rng: random.Random
) -> None:
    for _ in range(400):
        text = "".join(rng.choices(FRAGMENTS, k=rng.randint(0, 14)))
        reasoning, is_open = rng.random() < 0.3, rng.random() < 0.5
        whole, *cut = (
            parse(make_parser(format_, forced=forced, reasoning=reasoning, starts_in_reasoning=is_open), pieces)
            for pieces in ([text], list(text), cut_anywhere(text, rng))
        )
        assert cut == [whole, whole]
        if not reasoning and not any(part[0] == "call" for part in whole):
            # A forced call that was cut off before it began is no content.
            assert "".join(part[1] for part in whole) in ({text} if forced is None else {text, ""})


def test_answers_read_side_by_side_do_not_meet() -> None:
    texts = [f'a{n}<tool_call>{{"name": "f{n}", "arguments": {{"n": {n}}}}}</tool_call>' for n in range(5)]
    parsers = [make_parser(HERMES) for _ in texts]
    parts: list[list[Part]] = [[] for _ in texts]
    for place in range(max(map(len, texts))):
        for n, text in enumerate(texts):
            parts[n] += parsers[n].feed(text[place : place + 1])
    for n, whole in enumerate(parts):
        assert merge(whole) == [("content", f"a{n}"), ("call", f"f{n}", f'{{"n": {n}}}')]


LONG: dict[str, Callable[[int], str]] = {
    "string": lambda size: json.dumps({"text": "word and " * (size // 9)}),
    "escapes": lambda size: json.dumps({"text": '\n"' * (size // 4)}),
    "small values": lambda size: json.dumps({"items": [{"a": 1, "b": "c"}] * (size // 22)}),
    "brackets": lambda size: '{"x": ' + "[" * (size // 2) + "]" * (size // 2) + "}",
    "open string": lambda size: '{"x": "' + "y<" * (size // 2),
    "space": lambda size: " " * size + "{}",
}


ROUNDS = 6


def seconds(format_: ToolFormat, text: str, piece: int) -> float:
    pieces = [text[start : start + piece] for start in range(0, len(text), piece)]
    parser = make_parser(format_)
    start = time.process_time()
    for part in pieces:
        parser.feed(part)
    parser.flush()
    return time.process_time() - start


def grows_by_less_than(bound: float, format_: ToolFormat, short: str, long: str, piece: int) -> bool:
    """Compares the least times of up to six alternated rounds: a machine may be slower for a while."""
    shorts: list[float] = []
    longs: list[float] = []
    for _ in range(ROUNDS):
        shorts.append(seconds(format_, short, piece))
        longs.append(seconds(format_, long, piece))
        if min(longs) < bound * max(min(shorts), 0.0005):
            return True
    return False


@pytest.mark.alone
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("piece", [4, 1_000_000])
@pytest.mark.parametrize(
    ("format_", "before", "after"),
    [
        (HERMES, '<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
        (HERMES, '<tool_call>{"arguments": ', ', "name": "f"}</tool_call>'),
        (LLAMA, '{"x": ', "}"),
        (MISTRAL, "[TOOL_CALLS]f[ARGS]", ""),
        (HERMES, "", ""),
    ],
    ids=["call", "arguments first", "no call", "bare arguments", "content"],
)
def test_time_is_linear_in_the_answer(kind: str, piece: int, format_: ToolFormat, before: str, after: str) -> None:
    short, long = (before + LONG[kind](size) + after for size in (12_500, 100_000))
    assert grows_by_less_than(8 * 2, format_, short, long, piece)
