"""`crossover trace` from a source's file to a picture."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from loadtest.rehearsal.trace_file import read_header, read_trace
from loadtest.trace_cli import trace

DATA = Path(__file__).parent / "rehearsal" / "data"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(trace, arguments)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("azure.csv", "azure: 40 of 40 requests\n"),
        ("mooncake.jsonl", "mooncake: 36 of 36 requests\n"),
        ("burstgpt.csv", "burstgpt: 10 of 10 requests, 2 dropped (no answer)\n"),
        ("sharegpt.json", "sharegpt: 4 of 4 requests, 2 dropped (no prompt or no answer)\n"),
    ],
)
def test_a_file_of_any_form_becomes_a_trace_that_can_be_shown(tmp_path: Path, file: str, message: str) -> None:
    out = tmp_path / "out.jsonl"
    done = run("import", str(DATA / file), "--out", str(out))
    assert (done.exit_code, done.stderr, done.stdout) == (0, message, "")
    assert run("import", str(DATA / file)).stdout == out.read_text()
    shown = run("show", str(out))
    assert shown.exit_code == 0, shown.output
    assert f"{len(read_trace(out))} requests in" in shown.stdout
    assert "█" in shown.stdout
    assert shown.stdout.startswith(f"{file.partition('.')[0]} · ")
    figures = json.loads(run("show", str(out), "--json").stdout)
    assert figures["requests"] == len(read_trace(out))
    assert figures["prompt_tokens"]["p50"] <= figures["prompt_tokens"]["p95"] <= figures["prompt_tokens"]["most"]


def test_what_was_made_of_a_source_is_in_the_header_and_a_trace_can_be_imported_again(tmp_path: Path) -> None:
    out, again = tmp_path / "chat.jsonl.gz", tmp_path / "again.jsonl"
    made = ("--name", "chat", "--seconds", "20", "--max-prompt", "1500", "--scale-prompt", "2", "--seed", "5")
    done = run("import", str(DATA / "azure.csv"), *made, "--out", str(out))
    header = read_header(out)
    assert done.exit_code == 0, done.output
    assert header == {
        "trace": "chat",
        "source": "Azure LLM inference trace, github.com/Azure/AzurePublicDataset",
        "licence": "CC-BY-4.0",
        "seconds": 20.0,
        "max_prompt": 1500,
        "scale_prompt": 2.0,
        "seed": 5,
        "dropped": {"prompt too long": 40 - len(read_trace(out))},
    }
    done = run("import", str(out), "--peak", "2", "--out", str(again))
    assert done.exit_code == 0, done.output
    assert read_header(again)["licence"] == "CC-BY-4.0"
    assert 0 < len(read_trace(again)) < len(read_trace(out))


def test_in_a_gateways_own_traffic_turns_follow_from_the_hashes_of_blocks(tmp_path: Path) -> None:
    lines = [
        {"at": 1e9, "model": "llama", "prompt_tokens": 300, "tokens": 50, "prefix": [77], "block": 256},
        {"at": 1e9 + 9, "model": "llama", "prompt_tokens": 600, "tokens": 50, "prefix": [77, 5], "block": 256},
        {"at": 1e9 + 9, "model": "llama", "prompt_tokens": 600, "tokens": 50, "prefix": [8, 6], "block": 256},
    ]
    (tmp_path / "arrivals.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = run("import", str(tmp_path / "arrivals.jsonl"))
    assert [json.loads(line).get("after") for line in done.stdout.splitlines()[1:]] == [None, 0, None]
    assert [json.loads(line).get("wait_s") for line in done.stdout.splitlines()[1:]] == [None, 8.0, None]


def test_texts_are_counted_by_a_tokenizer_where_there_is_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()  # divides at punctuation too
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "two.json").write_text(
        json.dumps([{"conversations": [{"from": "human", "value": "One, two."}, {"from": "gpt", "value": "Three!"}]}])
    )
    words, tokens = (
        json.loads(run("import", str(tmp_path / "two.json"), *options).stdout.splitlines()[1])
        for options in ((), ("--tokenizer", str(tmp_path)))
    )
    header = json.loads(run("import", str(tmp_path / "two.json"), "--rate", "3").stdout.splitlines()[0])
    assert (header["rate"], header["wait_s"], header["tokens"]) == (3.0, 10.0, "4/3 of the words")
    assert (words["prompt_tokens"], words["tokens"]) == (3, 2)  # four thirds of the words, rounded up
    assert (tokens["prompt_tokens"], tokens["tokens"]) == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "/nowhere.csv"), "/nowhere.csv"),
        (("import", str(DATA / "azure.csv"), "--peak", "-1"), "peak: Input should be greater than 0"),
        (
            ("import", str(DATA / "azure.csv"), "--peak", "99", "--seconds", "60"),
            "a peak of 99 requests/s: all requests",
        ),
        (("import", str(DATA / "azure.csv"), "--form", "mooncake"), "azure.csv, line 1: Expecting value"),
        (("import", str(DATA / "azure.csv"), "--form", "crossover"), "azure.csv, line 1: JSONDecodeError"),
        (("import", str(DATA / "azure.csv"), "--out", "/nowhere/x"), "/nowhere/x"),
        (("import", __file__), "test_trace_cli.py, line 1: JSONDecodeError"),
        (("import", str(DATA / "sharegpt.json"), "--tokenizer", "/nowhere"), "--tokenizer: /nowhere/tokenizer.json"),
        (("show", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("show", ""), "Error"),
        (("show", str(DATA / "azure.csv")), "azure.csv, line 1: JSONDecodeError"),
    ],
)
def test_a_bad_argument_or_file_is_named(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, message in " ".join(done.output.split())) == (2, True), done.output
