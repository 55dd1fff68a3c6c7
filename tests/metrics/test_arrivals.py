"""What is kept of users' requests as a trace, in a file on a real disk."""

import json
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.core import FinishReason, Prompt, Route
from gateway.errors import BackendUnavailable
from gateway.metrics import MOVED, ArrivalsFile
from gateway.metrics.arrivals import BLOCK, MAX_LINES
from tests.fakes.sink import RecordingSink
from tests.metrics.test_metrics import Relayed, Scene


def read(file: Path) -> list[dict[str, Any]]:  # Any: JSON
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_answers_to_users_are_kept_with_their_arrivals_and_lengths(tmp_path: Path) -> None:
    file, scene = tmp_path / "new" / "arrivals.jsonl", Scene()
    scene.metrics.arrivals = ArrivalsFile(file)
    async with scene.metrics.arrivals.writing():
        scene.answer(FinishReason.STOP)
        scene.answer(FinishReason.STOP, run="run-1")
        scene.answer(BackendUnavailable("gone"))
        scene.answer(None)
        scene.metrics.relayed(scene.request(), Route("vllm", "test"), 10.0, Relayed(first=10.2, last=11.0), "stop")
        scene.metrics.relayed(scene.request(), Route("vllm", "test"), 10.0, Relayed(10.2, 11.0, usage=(0, 0)), "stop")
    kept = read(file)
    assert [(line["model"], line["prompt_tokens"], line["tokens"]) for line in kept] == [
        ("llama", 3, 3),
        ("llama", 3, 5),
    ]
    assert kept[0]["at"] == pytest.approx(time.time() - 0.3, abs=5)  # 0.3 s by the scene's clock before its end


async def test_prompts_that_begin_alike_have_equal_hashes_up_to_there_and_only_under_one_salt(tmp_path: Path) -> None:
    file, shared = tmp_path / "arrivals.jsonl", tuple(range(2 * BLOCK))
    prompts = [(*shared, 1), (*shared, *range(BLOCK)), (5, *shared[1:]), (*shared[:-1], 0), shared[: BLOCK - 1]]
    for salt in (b"one", b"other"):
        arrivals = ArrivalsFile(file, salt)
        async with arrivals.writing():
            for prompt in prompts:
                arrivals.note(1.0, "llama", prompt, 5)
    one, other = ([line.get("prefix", []) for line in read(file)[start : start + 5]] for start in (0, 5))
    assert [len(prefix) for prefix in one] == [2, 3, 2, 2, 0]
    assert one[0] == one[1][:2]
    assert one[3][0] == one[0][0]
    assert not {*one[2], one[3][1]} & {*one[0], *one[1]}
    assert {*chain(*one)}.isdisjoint(chain(*other))
    assert {line.get("block") for line in read(file)} == {BLOCK, None}


async def test_a_lines_length_and_the_number_of_lines_that_wait_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "arrivals.jsonl"
    arrivals = ArrivalsFile(file)
    async with arrivals.writing():
        arrivals.note(1.0, "llama", tuple(range(200_000)), 5)
        for _ in range(MAX_LINES + 5):
            arrivals.note(2.0, "llama", 9, 5)
    lines = file.read_text().splitlines()
    assert len(lines) == MAX_LINES
    assert [message.rpartition(": ")[2] for message in caplog.messages] == [
        "the disk takes them more slowly than they come"
    ]
    assert len(lines[0]) < 2500
    assert json.loads(lines[0])["prompt_tokens"] == 200_000


async def test_of_an_answer_that_moved_the_prompt_alone_is_noted(tmp_path: Path) -> None:
    file, scene = tmp_path / "arrivals.jsonl", Scene()
    scene.metrics.arrivals = ArrivalsFile(file)
    prompt = tuple(range(BLOCK))
    request = replace(scene.request(), prompt=Prompt(prompt))
    async with scene.metrics.arrivals.writing():
        first = scene.metrics.observe(request, Route("vllm", "test"), RecordingSink())
        first.tokens([1, 2])
        first.end(MOVED)
        whole = replace(request, prompt=Prompt((*prompt, 1, 2)))
        second = scene.metrics.observe(whole, Route("triton", "test"), RecordingSink(), before=first)
        second.tokens([3])
        second.finish(FinishReason.STOP)
    (line,) = read(file)
    assert (line["prompt_tokens"], line["tokens"], len(line["prefix"])) == (BLOCK, 3, 1)


async def test_lines_are_written_while_it_runs_and_several_writers_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.jsonl"
    one, two = ArrivalsFile(file), ArrivalsFile(file)
    async with one.writing(), two.writing():
        for number in range(200):
            (one, two)[number % 2].note(number, "llama", 80, 128)
        await anyio.sleep(1.5)  # longer than the pause between two writes
        written = len(read(file))
    assert written == 200
    assert sorted(line["at"] for line in read(file)) == list(range(200))


async def test_a_file_that_cannot_be_written_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "arrivals.jsonl"
    file.mkdir()
    arrivals = ArrivalsFile(file)
    for _ in range(2):
        async with arrivals.writing():
            arrivals.note(1.0, "llama", 80, 128)
    assert [message.split(":")[0] for message in caplog.messages] == [
        f"arrivals cannot be written to {file} and are lost until they can"
    ]
    file.rmdir()
    async with arrivals.writing():
        arrivals.note(2.0, "llama", 80, 128)
    assert [line["at"] for line in read(file)] == [2.0]
