"""Traces in files: what was written is read again, and damage is refused with its line."""

import gzip
import json
from pathlib import Path

import pytest

from loadtest.rehearsal.find_trace import PUBLISHED
from loadtest.rehearsal.trace_figures import find_trace_figures
from loadtest.rehearsal.trace_file import list_lines, read_header, read_trace, write_trace
from loadtest.rehearsal.traces import Pair, TraceRequest, Variant, make_trace

PAIR = Pair(answer_s=0.5, answers_per_s=1000, prompt_tokens=80, tokens=128)
TURNS = (
    TraceRequest(0.0, 1300, 20, prefix=(7, 8, 12), block=512),
    TraceRequest(0.5, 90, 7, "high"),
    TraceRequest(2.0, 1500, 30, after=0, wait_s=1.25, prefix=(7, 8), block=512),
    TraceRequest(9.0, 1600, 30, after=2),
)


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    trace, file = make_trace(Variant("ramp", only_high=0.5), PAIR, 1)[:50], tmp_path / "trace.jsonl"
    file.write_text("\n".join(list_lines(trace)))
    start = trace[0].at
    assert [request.at for request in read_trace(file)] == pytest.approx(
        [request.at - start for request in trace], abs=2e-6
    )
    assert [request.only for request in read_trace(file)] == [request.only for request in trace]


@pytest.mark.parametrize("name", ["turns.jsonl", "turns.jsonl.gz"])
def test_a_file_holds_who_waits_for_whom_and_what_prompts_share(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    write_trace(file, TURNS, {"trace": "turns", "source": "a test"})
    assert read_trace(file) == TURNS
    assert read_header(file) == {"trace": "turns", "source": "a test"}
    before = file.read_bytes()
    write_trace(file, TURNS, {"trace": "turns", "source": "a test"})
    assert file.read_bytes() == before


def test_lines_may_come_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(reversed(list(list_lines(TURNS)))))
    assert read_trace(file) == TURNS
    assert read_header(file) == {}


def test_a_gateways_own_lines_are_a_trace(tmp_path: Path) -> None:
    """They come as answers end, and count seconds from 1970."""
    file = tmp_path / "arrivals.jsonl"
    lines = [(1764219602.5, 90, 7), (1764219600.25, 80, 128)]
    file.write_text(
        "".join(
            json.dumps({"at": at, "model": "llama", "prompt_tokens": prompt, "tokens": tokens}) + "\n"
            for at, prompt, tokens in lines
        )
    )
    assert read_trace(file) == (TraceRequest(0.0, 80, 128), TraceRequest(2.25, 90, 7))


SOUND = '{"at": 1, "prompt_tokens": 9, "tokens": 3, "id": 1}'
REST = '"prompt_tokens": 9, "tokens": 3}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "Expecting value"),
        ("[]", "TypeError"),
        ('{"at": 1, "tokens": 3}', "KeyError 'prompt_tokens'"),
        ('{"at": -1, ' + REST, "at must be a number of seconds"),
        ('{"at": NaN, ' + REST, "at must be a number of seconds"),
        ('{"at": 1, "prompt_tokens": 1, "tokens": 0}', "tokens must be whole numbers"),
        ('{"at": 1, "prompt_tokens": 1, "tokens": true}', "tokens must be whole numbers"),
        ('{"at": 1, "only": "vllm", ' + REST, "only must be low or high"),
        ('{"at": 1, "after": 5, ' + REST, "after 5: no request has this id"),
        ('{"at": 0, "after": 1, ' + REST, "after 1: that request comes no earlier"),
        ('{"at": 1, "after": 1.5, ' + REST, "after must be a whole number or a text"),
        ('{"at": 1, "wait_s": 2, ' + REST, "wait_s needs after"),
        ('{"at": 1, "after": 1, "wait_s": -2, ' + REST, "wait_s must be a number of seconds"),
        ('{"at": 1, "id": 1, ' + REST, "id 1 belongs to another request"),
        ('{"at": 1, "prefix": [1], ' + REST, "prefix needs block"),
        ('{"at": 1, "prefix": [1, -2], "block": 4, ' + REST, "prefix must be a list of block ids"),
        ('{"at": 1, "prefix": [[1, 1000000000]], "block": 4, ' + REST, "prefix must be a list of block ids"),
        ('{"at": 1, "prefix": [1, 2, 3, 4], "block": 4, ' + REST, "prefix must not be longer than the prompt"),
        ('{"trace": "second header"}', "KeyError 'at'"),
        ("\udce9", "UnicodeDecodeError"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_the_reason(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(f'{{"trace": "bad"}}\n{SOUND}\n{line}\n'.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"trace.jsonl, line 3: .*{message}"):
        read_trace(file)


def test_a_file_without_requests_or_with_a_part_missing_is_refused(tmp_path: Path) -> None:
    file, packed = tmp_path / "trace.jsonl", tmp_path / "trace.jsonl.gz"
    file.write_text('{"trace": "empty"}\n')
    with pytest.raises(ValueError, match="holds no request"):
        read_trace(file)
    packed.write_bytes(gzip.compress((SOUND + "\n").encode() * 9)[:-9])
    with pytest.raises(ValueError, match=r"trace.jsonl.gz, line \d+: "):
        read_trace(packed)


def test_published_traces_have_the_figures_of_their_sources() -> None:
    """Counts and means of Mooncake are those of its README; Azure's csv has 19,366 rows."""
    azure, mooncake = (find_trace_figures(read_trace(PUBLISHED[name])) for name in ("azure-chat", "mooncake-chat"))
    assert (azure.requests, mooncake.requests) == (19_366, 12_031)
    assert (mooncake.prompt_tokens.mean, mooncake.tokens.mean) == pytest.approx((12_035, 343), abs=1)
    assert (azure.prompt_tokens.most, mooncake.prompt_tokens.most) == (14_050, 126_195)
    assert azure.conversations == azure.requests
    assert mooncake.waiting > 3000
    assert 0.3 < mooncake.repeated < 0.4
    assert sum(path.stat().st_size for path in PUBLISHED.values()) < 600_000
    assert {read_header(path)["licence"] for path in PUBLISHED.values()} == {"CC-BY-4.0", "Apache-2.0"}
