"""What is kept of users' requests as a trace, in a file on a real disk."""

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.core import FinishReason, Route
from gateway.errors import BackendUnavailable
from gateway.metrics import ArrivalsFile
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
