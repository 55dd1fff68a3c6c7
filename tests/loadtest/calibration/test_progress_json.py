"""Progress for programs: lines on stderr of the command as its users run it."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.loadtest.calibration.runs import SHORT, calibrate, start
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

FAST, SLOW = Speed(0.005, 0.0), Speed(0.02, 0.0)
SMALL = (*SHORT[:-1], "1,2", "--budget", "0", "--progress", "json")


def read_lines(stderr: str) -> list[dict[str, Any]]:  # Any: JSON, read key by key
    return [json.loads(line) for line in stderr.splitlines()]


async def test_every_line_is_an_object_from_the_beginning_to_the_verdict(tmp_path: Path) -> None:
    async with FakeGateway(FAST, SLOW) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SMALL, "--apply", "--json")
    lines = read_lines(outcome.stderr)
    begin, *middle, end = lines
    assert (begin["event"], begin["levels"], begin["pairs"]) == ("begin", [1, 2], 4)
    assert Path(begin["folder"]) == tmp_path / begin["run"]
    cells = [line for line in middle if line["event"] == "cell"]
    assert [cell["pairs_done"] for cell in cells[-2:]] == [3, 4]
    assert [cell["left_s"] is None for cell in cells] == [False] * (len(cells) - 1) + [True]
    assert all(cell["throughput"] > 0 and cell["backend"] in {"triton", "vllm"} for cell in cells)
    assert (end["event"], end["exit_code"], end["applied"]) == ("end", outcome.exit_code, None)
    assert end["status"] == json.loads(outcome.stdout)["status"]
    assert end["verdict"] == json.loads(outcome.stdout)["crossover"]["throughput"]["verdict"]


async def test_a_refused_run_a_missing_gateway_and_an_interrupt_end_with_a_line_too(tmp_path: Path) -> None:
    async with FakeGateway(FAST, SLOW, Faults(short_answer=6)) as gateway:
        refused = read_lines((await calibrate(gateway, tmp_path, *SMALL)).stderr)[-1]
    assert (refused["event"], refused["status"], refused["exit_code"]) == ("end", "untrusted", 3)
    assert "UNEQUAL WORK" in refused["failure"]
    missing = read_lines((await calibrate(None, tmp_path, *SMALL)).stderr)
    assert [(line["event"], line["status"], line["exit_code"]) for line in missing] == [("end", "failed", 2)]
    async with FakeGateway(FAST, SLOW) as gateway:
        process = await start(gateway, tmp_path, *SMALL)
        assert process.stderr is not None
        while json.loads(await process.stderr.readline())["event"] != "measuring":
            pass
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    ended = read_lines(stderr.decode())[-1]
    assert (ended["event"], ended["status"], ended["exit_code"]) == ("end", "interrupted", 130)
