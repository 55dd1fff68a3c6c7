"""Excerpts of the forms in which others publish traffic. What BurstGPT's and ShareGPT's hold is made up."""

import io
import json
import math
from pathlib import Path

import pytest

from loadtest.rehearsal.conversations import link_turns
from loadtest.rehearsal.forms import FORMS, Completion, Source, recognise

DATA = Path(__file__).parent / "data"
COMPLETION = Completion(rate=2.0, wait_s=5.0, seed=1, count_tokens=lambda text: len(text.split()))


def read(form: str, file: str) -> Source:
    return parse(form, (DATA / file).read_text())


def parse(form: str, text: str) -> Source:
    return FORMS[form].read(io.StringIO(text), COMPLETION)


@pytest.mark.parametrize("file", sorted(path.name for path in DATA.iterdir()))
def test_a_form_is_recognised_by_content(file: str) -> None:
    assert recognise((DATA / file).read_text()) == file.partition(".")[0].partition("_")[0]


def test_azures_rows_keep_their_lengths_and_gaps() -> None:
    rows = [line.split(",") for line in (DATA / "azure.csv").read_text().split()[2::2]]  # the time of day comes second
    source = read("azure", "azure.csv")
    assert [(each.prompt_tokens, each.tokens) for each in source.requests] == [(int(a), int(b)) for _, a, b in rows]
    seconds = [sum(float(part) * 60**power for power, part in enumerate(reversed(row[0].split(":")))) for row in rows]
    assert [each.at for each in source.requests] == pytest.approx([at - seconds[0] for at in seconds], abs=1e-6)
    assert len(rows) == 40


def test_mooncakes_lines_keep_their_lengths_gaps_and_blocks_and_turns_follow_from_blocks() -> None:
    lines = [json.loads(line) for line in (DATA / "mooncake.jsonl").read_text().splitlines()]
    source = read("mooncake", "mooncake.jsonl")
    assert [
        {
            "timestamp": round(each.at * 1000),
            "input_length": each.prompt_tokens,
            "output_length": each.tokens,
            "hash_ids": list(each.prefix),
        }
        for each in source.requests
    ] == lines
    linked = link_turns(source.requests)
    turns = {index: each.after for index, each in enumerate(linked) if each.after is not None}
    assert len(turns) == 12  # three conversations of 4, 7 and 4 turns
    for index, before in turns.items():
        assert linked[before].at <= linked[index].at
        assert linked[index].prompt_tokens >= linked[before].prompt_tokens + linked[before].tokens
        assert linked[index].wait_s < linked[index].at - linked[before].at


def test_burstgpts_failures_are_dropped_and_counted() -> None:
    source = read("burstgpt", "burstgpt.csv")
    assert [(each.at, each.prompt_tokens, each.tokens) for each in source.requests][:3] == [
        (5.0, 472, 18), (45.0, 1087, 230), (118.0, 417, 276),
    ]  # fmt: skip
    assert (len(source.requests), source.dropped) == (10, {"no answer": 2})
    assert all(each.after is None for each in source.requests)


def test_burstgpts_sessions_wait_for_their_answers() -> None:
    source = read("burstgpt", "burstgpt_sessions.csv")
    waits = [(index, each.after, each.wait_s) for index, each in enumerate(source.requests) if each.after is not None]
    assert waits == [
        (3, 1, 192 - 161 - 2),
        (4, 0, 200 - 110 - 43),
        (5, 4, 0.0),  # sent before the answer had ended
        (6, 3, 266 - 192 - 5),  # after one that failed
    ]
    assert source.dropped == {"no answer": 2}


def test_sharegpts_turns_have_all_before_as_their_prompt_and_wait_for_the_answer() -> None:
    source = read("sharegpt", "sharegpt.json")
    lengths = [(each.prompt_tokens, each.tokens, each.after) for each in source.requests]
    first = lengths.index((8, 19, None))
    assert (8 + 19 + 6, 3, first) in lengths
    assert (4 + 4, 7, None) in lengths
    assert (10 + 2, 9, None) in lengths
    assert source.dropped == {"no prompt or no answer": 2}
    assert read("sharegpt", "sharegpt.json") == source
    times = [each.at for each in source.requests]
    assert times == sorted(times)


def test_sharegpts_conversations_begin_at_the_rate_and_later_turns_share_the_prompt_before() -> None:
    turn = [{"from": "human", "value": "word " * 130}, {"from": "gpt", "value": "word " * 20}]
    source = parse("sharegpt", json.dumps([{"conversations": turn * 3}] * 2000))
    starts = [each for each in source.requests if each.after is None]
    assert len(starts) / starts[-1].at == pytest.approx(2.0, rel=0.1)
    waits = [each.wait_s for each in source.requests if each.after is not None]
    assert sum(waits) / len(waits) == pytest.approx(5.0, rel=0.1)
    for each in source.requests:
        if each.after is not None:
            before = source.requests[each.after]
            assert each.prefix[: len(before.prefix)] == before.prefix
            assert len(each.prefix) == each.prompt_tokens // 64
    assert len({each.prefix[0] for each in starts}) == len(starts)


AZURE, BURST = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "Timestamp,Model,Request tokens,Response tokens\n"
LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n", "line 1: has no column GeneratedTokens"),
        ("azure", AZURE + "2023-11-16 18:15:46,374,44\nyesterday,374,44\n", "line 3: Invalid isoformat string"),
        ("azure", AZURE + "2023-11-16 18:15:46,374,-4\n", "line 2: GeneratedTokens must be a whole number"),
        ("azure", AZURE + "2023-11-16 18:15:46,374\n", "line 2: has 2 fields, the first line 3"),
        ("azure", AZURE, "holds no request"),
        ("burstgpt", BURST + "5,ChatGPT,4,5\nnan,ChatGPT,4,5\n", "line 3: Timestamp must be a number of seconds"),
        ("burstgpt", BURST + "5,ChatGPT,4,5.5\n", "line 2: Response tokens must be a whole number"),
        ("burstgpt", BURST + '5,"ChatGPT,4,5\n', "line 2: unexpected end of data"),
        ("mooncake", LINE + "{\n", "line 2: Expecting property name"),
        ("mooncake", LINE + "[]\n", "line 2: must be a JSON object"),
        ("mooncake", LINE + LINE.replace("timestamp", "time"), "line 2: has no timestamp"),
        ("mooncake", LINE + LINE.replace("[1, 2]", "[1]"), "line 2: 1 hash_ids for 600 tokens; there is one"),
        ("mooncake", LINE + LINE.replace("[1, 2]", "[1, -2]"), "line 2: hash_ids must be a list of whole numbers"),
        ("mooncake", LINE + LINE.replace("600", "true"), "line 2: input_length must be a whole number"),
        ("sharegpt", '[\n{"conversations": [\n{"from": "human"}]}]', "line 2: has no value"),
        ("sharegpt", '[{"conversations": []},\n{"conversations": [{"from": "cat", "value": ""}]}]', "line 2: from"),
        ("sharegpt", '[{"conversations": []},\n7]', "line 2: a conversation must be a JSON object"),
        ("sharegpt", '[\n{"conversations": []}\n{"conversations": []}]', "line 3: the list goes on without a comma"),
        ("sharegpt", '[\n{"conversations": [}\n]', "line 2: Expecting value"),
        ("sharegpt", '[\n{"conversations": []}\n', "line 3: the list goes on without a comma, or has no end"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_its_line_and_the_reason(form: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(form, text)


def test_nothing_of_a_conversations_text_is_kept() -> None:
    assert "harbor" not in repr(read("sharegpt", "sharegpt.json"))
    assert math.isfinite(sum(each.at for each in read("sharegpt", "sharegpt.json").requests))
