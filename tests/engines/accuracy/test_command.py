"""`crossover accuracy` on the reference weights in float32: against themselves, and against an int8 copy."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deploy.launch import Launched
from engines.accuracy.cli import accuracy
from engines.accuracy.items import Choice
from engines.accuracy.reference_set import make_items
from engines.reference.quantize import write_copy
from tests.engines.wires.servers import WEIGHTS, serving

SMALL = ("--tasks", "reference", "--items", "10", "--only", "reverse", "--only", "repeat")


@pytest.fixture(scope="module")
def float32() -> Iterator[str]:
    with serving("engines.reference.vllm_http", "--port", "0") as server:
        yield server.addresses[0]


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    copy = tmp_path_factory.mktemp("int8") / "weights"
    write_copy(WEIGHTS, copy, 8, "tensor")
    with serving("engines.reference.vllm_http", "--port", "0", "--model-dir", str(copy)) as server:
        yield server.addresses[0]


def run(out: Path, *options: str) -> tuple[Result, Any]:  # the JSON it printed
    answer = CliRunner().invoke(accuracy, ["--out", str(out), "--json", "--in-flight", "16", *options])
    return answer, json.loads(answer.stdout) if answer.stdout else None


def judged(found: Any, measure: str) -> Any:
    return next(one for one in found["findings"]["judged"] if one["measure"] == measure and one["task"] is None)


def test_on_identical_weights_no_loss_is_found(float32: str, tmp_path: Path) -> None:
    answer, found = run(tmp_path, "--a", float32, "--b", float32, "--allow-divergence", "0", *SMALL)
    assert (answer.exit_code, found["verdict"]) == (0, "none found"), answer.stderr
    score, surprisal = judged(found, "score"), judged(found, "surprisal")
    assert (score["interval"]["point"], surprisal["verdict"]) == (0, "ruled out")
    assert abs(surprisal["interval"]["point"]) < 1e-6
    tokens = found["findings"]["tokens"]
    assert (tokens["answers"], tokens["same_answers"], tokens["equal"]) == (20, 20, 1)
    assert abs(judged(found, "divergence")["interval"]["high"]) < 1e-7


def test_of_an_int8_copy_the_loss_is_found_with_its_interval(float32: str, int8: str, tmp_path: Path) -> None:
    """One scale for each tensor. No answer need be wrong for it: what shows with few items is the divergence."""
    answer, found = run(tmp_path, "--a", float32, "--b", int8, "--allow-divergence", "0", *SMALL)
    assert (answer.exit_code, found["verdict"]) == (1, "loss"), answer.stderr
    divergence = judged(found, "divergence")
    interval = divergence["interval"]
    assert (divergence["verdict"], 1e-6 < interval["low"] < interval["point"] < interval["high"]) == ("loss", True)
    assert "B loses more than allowed: " in answer.stderr
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("accuracy-")
    assert json.loads((folder / "result.json").read_text()) == found
    assert len((folder / "items.jsonl").read_text().splitlines()) == 20
    assert "| surprisal, nats per token |" in (folder / "report.md").read_text()


def test_the_reference_set_is_the_same_every_time_and_its_right_choices_are_in_all_places() -> None:
    items = make_items(60)
    assert items == make_items(60)
    assert len({item.prompt for item in items}) == len(items)
    places = {item.wanted.right for item in items if isinstance(item.wanted, Choice)}
    assert places == {0, 1, 2, 3}


def test_two_backends_of_one_gateway_are_compared_on_a_user_s_tasks(embedded_stack: Launched, tmp_path: Path) -> None:
    """As chats and as prompts; Triton returns no log-probabilities, and the report names what that leaves out."""
    tasks = tmp_path / "tasks.jsonl"
    lines: list[Any] = [
        {"task": "chat", "messages": [{"role": "user", "content": f"What is {n} + 3?"}], "answer": f"{n} + 3 = {n + 3}"}
        for n in range(3, 9)
    ]
    asked = {"task": "extracted", "max_tokens": 20, "extract": r"= (\d+)"}
    lines += [asked | {"prompt": f"What is {n} + 3?", "answer": f"{n + 3}"} for n in range(3)]
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pins = ("--url", embedded_stack.url, "--a", "vllm", "--b", "triton", "--tasks", str(tasks))
    answer, found = run(tmp_path / "runs", *pins, "--cost-a", "2", "--cost-b", "1x3.60@1000")
    assert answer.exit_code == 0, answer.stderr
    chat = next(score for score in found["findings"]["scores"] if score["task"] == "chat")
    assert (chat["a_right"], chat["b_right"]) == (6, 6)
    assert found["findings"]["tokens"]["same_answers"] == 9
    assert (found["a"]["cost"]["per_million"], found["b"]["cost"]["per_million"]) == (2, 1)
    assert [one["measure"] for one in found["findings"]["judged"]] == ["score"] * 3
    assert "'logprobs' is not supported by backend triton" in (" ".join(answer.stderr.split()))


def test_a_task_that_one_side_cannot_do_ends_the_run_with_its_name(embedded_stack: Launched, tmp_path: Path) -> None:
    pins = ("--url", embedded_stack.url, "--a", "vllm", "--b", "triton")
    answer, _ = run(tmp_path, *pins, "--tasks", "reference", "--items", "2")
    assert (answer.exit_code, "--skip capital" in answer.stderr) == (2, True)


def test_real_vllm_and_the_gateway_before_it_are_found_alike(cpu_stack: Launched, tmp_path: Path) -> None:
    """vLLM names alternatives by id, the gateway by text: they are compared by what both can do."""
    where = ("--url", cpu_stack.url, "--a", str(cpu_stack.stack.backends["vllm"]["url"]), "--b", "vllm")
    answer, found = run(tmp_path, *where, "--tasks", "reference", "--items", "2")
    assert answer.exit_code == 0, answer.stderr
    assert (judged(found, "surprisal")["verdict"], found["findings"]["tokens"]["same_answers"]) == ("ruled out", 8)
    assert abs(judged(found, "divergence")["interval"]["high"]) < 1e-6
    assert next(score for score in found["findings"]["scores"] if score["task"] == "capital")["a_right"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tasks", "reference", "--only", "poetry"), "no task poetry"),
        (("--tasks", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--tasks", "reference", "--items", "1", "--cost-a", "cheap"), "2x2.50@18000"),
        (("--tasks", "reference", "--items", "1", "--model", "other"), "does not exist"),
        (("--tasks", "reference", "--b", "ftp://somewhere"), "must look like http://host:port"),
        (("--tasks", "reference", "--b", "http://[::1"), "--b"),
        (("--tasks", "reference", "--b", "B A"), "or the name of a backend"),
        (("--tasks", "reference", "--key-a", "two words"), "without blanks"),
    ],
)
def test_what_is_unmeasurable_is_one_line(float32: str, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    answer, _ = run(tmp_path, "--a", float32, "--b", float32, *options)
    assert (answer.exit_code, words in answer.stderr) == (2, True), answer.stderr
