"""The command, as its users run it: a process of its own against a gateway on a socket."""

import asyncio
import csv
import json
import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from engines.physics import EngineModel
from loadtest.results.result import parse_result
from tests.loadtest.calibration.runs import HIGH, LOW, SHORT, calibrate, read_result, read_until, start, wait_for_lines
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed, crossing

pytestmark = pytest.mark.timeout(180)  # some calibrate twice
FILES = ("run.json", "cells.jsonl", "cells.csv", "result.json", "report.md", "report.html")
SHAPED = (
    "--quick",
    "--rehearsals",
    "0",
    "--turns",
    "0",
    "--policy",
    "threshold",
    "--window",
    "0.4",
    "--levels",
    "2,4,8,16",
    "--budget",
    "0",
    "--accept-wide",
)
SLOW_START = EngineModel(((1, 14.0), (16, 17.0)), prompt_ms=20.0, request_ms=2.0)
FAST_START = EngineModel(((1, 10.0), (16, 13.0)), prompt_ms=15.0, request_ms=2.0)
IN_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")  # as a shell starts what ends in &


def list_files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


async def test_known_crossing_is_found_and_applied(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SHORT, "--apply")
        assert outcome.exit_code == 0, outcome
        assert gateway.policy["version"] == 2
    result = read_result(tmp_path)
    assert list_files(tmp_path) == {f"{result['run']}/{name}" for name in FILES}
    written = (tmp_path / result["run"] / "result.json").read_bytes()
    assert orjson.loads(orjson.dumps(parse_result(written).to_json())) == result
    with (tmp_path / result["run"] / "cells.csv").open() as file:
        levels = [(row["backend"], int(row["level"])) for row in csv.DictReader(file)]
    assert levels == [(cell["backend"], cell["level"]) for cell in result["cells"]]
    assert result["status"] == "complete"
    point = result["crossover"]["throughput"]["point"]
    assert point == pytest.approx(crossing(LOW, HIGH), rel=0.2)
    assert (gateway.policy["up"], gateway.policy["down"]) == (result["threshold"]["up"], result["threshold"]["down"])
    assert (result["applied"]["version"], gateway.policy["calibration"]) == (2, result["run"])
    # What is not known of an engine is no part of its fingerprint.
    engines = {"triton": gateway.engines["triton"], "vllm": {"engine": "vllm", "version": "0.24.0"}}
    assert (gateway.policy["fingerprint"], result["fingerprint"]["engines"]) == (engines, engines)
    assert gateway.runs == {result["run"]}
    rows = re.findall(r"^ +\d+  (?:triton|vllm) +[\d.,]+ .*$", outcome.stdout, re.MULTILINE)
    assert len(rows) >= len(result["cells"])
    assert "applied as policy version 2" in outcome.stdout


async def test_beside_users_no_more_is_in_flight_than_the_highest_level(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, gateway.in_flight)
                await asyncio.sleep(0.005)

        watching = asyncio.ensure_future(watch())
        outcome = await calibrate(gateway, tmp_path, *SHORT, "--turns", "2", "--max-foreign", "0")
        watching.cancel()
    assert outcome.exit_code in {0, 4}, outcome  # where a crossing lies is not what this asks
    result = read_result(tmp_path)
    assert result["node"]["interference"] < 0.5  # both were measured together
    assert result["open_loop"] == []
    assert most <= 16


async def test_one_winner_is_an_answer_and_applies_nothing(tmp_path: Path) -> None:
    async with FakeGateway(Speed(0.01, 0.0), Speed(0.02, 0.0), continuous_usage="counted") as gateway:
        outcome = await calibrate(gateway, tmp_path, *SHORT[:-1], "1,2", "--apply", "--json")
        assert outcome.exit_code == 0, outcome
        assert gateway.policy["version"] == 1
    printed = json.loads(outcome.stdout)
    assert printed == read_result(tmp_path)
    assert printed["crossover"]["throughput"]["verdict"] == "always low"
    assert printed["threshold"] is None
    assert {cell["counted_by"] for cell in printed["cells"]} == {"usage"}
    assert "the policy stays as it is" in outcome.stderr


async def test_the_wrong_way_round_is_unresolved(tmp_path: Path) -> None:
    async with FakeGateway(HIGH, LOW) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SHORT[:-1], "2,16", "--repeats", "3", "--budget", "0", "--apply")
        assert gateway.policy["version"] == 1
    assert outcome.exit_code == 4, outcome
    assert "swap its low (triton) and high (vllm)" in outcome.stdout


async def test_a_policy_by_the_node_model_needs_no_crossing(tmp_path: Path) -> None:
    async with FakeGateway(SLOW_START, FAST_START) as gateway:
        low, high = gateway.backends.values()
        low.neighbour, high.neighbour = high, low
        options = ("--levels", "2,8,16", "--budget", "0", "--rehearsals", "0", "--apply", "--limit", "unusable=1")
        outcome = await calibrate(gateway, tmp_path, "--quick", "--tokens", "12", "--window", "0.5", *options)
        policy = gateway.policy
    assert outcome.exit_code == 0, outcome
    result = read_result(tmp_path)
    assert result["threshold"] is None
    assert (policy["kind"], policy["node"], policy["calibration"]) == ("curve", result["node"], result["run"])
    assert "applied as policy version 2" in outcome.stdout
    assert result["node"]["interference"] == pytest.approx(1.0, abs=0.2)
    low_end, high_end = result["node"]["intervals"]["interference"]
    assert low_end <= result["node"]["interference"] <= high_end
    (note,) = [check["message"] for check in result["checks"] if check["name"] == "interference"]
    assert re.match(r"with 8 in flight on each, a step of triton takes .* alone and a step of vllm takes ", note)
    assert {len(cells) for cells in result["node_cells"].values()} == {3 + 5 + 4}
    read = parse_result((tmp_path / result["run"] / "result.json").read_bytes())
    assert orjson.loads(orjson.dumps(read.to_json())) == result


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(short_answer=12), "UNEQUAL WORK"),
        (Faults(replaced_engine=20), "ENGINES CHANGED while measuring: vllm version was 0.24.0, is 0.25.0"),
        (Faults(cached_tokens=5), "PREFIX CACHE: "),
    ],
    ids=["a wrong answer", "another engine", "a check that failed"],
)
async def test_a_run_is_refused(tmp_path: Path, faults: Faults, message: str) -> None:
    async with FakeGateway(LOW, HIGH, faults) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SHORT[:-1], "2,8", "--budget", "0", "--apply")
        assert gateway.policy["version"] == 1
    assert outcome.exit_code == 3, outcome
    assert message in outcome.stdout
    result = read_result(tmp_path)
    assert (result["status"], result["threshold"], result["applied"]) == ("untrusted", None, None)


@pytest.mark.parametrize(
    ("number", "by", "options"),
    [
        (signal.SIGINT, (), ()),
        (signal.SIGTERM, (), ()),
        (signal.SIGTERM, IN_BACKGROUND, ()),
        (signal.SIGINT, (), ("--processes", "3")),
    ],
)
async def test_interrupt_keeps_finished_cells_and_closes_every_connection(
    tmp_path: Path, number: signal.Signals, by: Sequence[str], options: Sequence[str]
) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        process = await start(gateway, tmp_path, *SHORT, *options, by=by)
        await read_until(process, rb" +\d+  triton")
        process.send_signal(number)
        stdout, _ = await process.communicate()
        await gateway.wait_until_left()
    assert process.returncode == 130
    assert b"kept" in stdout
    result = read_result(tmp_path)
    assert (result["status"], result["threshold"]) == ("interrupted", None)
    assert f"{result['run']}/cells.jsonl" in list_files(tmp_path)


@pytest.mark.parametrize("lines", [1, 4], ids=["in a pair", "between pairs"])
async def test_a_run_that_was_killed_continues_where_it_stopped(tmp_path: Path, lines: int) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        process = await start(gateway, tmp_path, *SHORT)
        file = await wait_for_lines(tmp_path, lines)
        process.kill()
        await process.communicate()
        before = file.read_bytes()
        file.write_bytes(before + b'{"backend":"trit')  # a line that the crash cut off
        outcome = await calibrate(gateway, tmp_path, "--resume", str(file.parent))
        prompts = gateway.prompts
    assert outcome.exit_code == 0, outcome
    assert file.read_bytes().startswith(before)
    cells = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert len({(cell["pair"], cell["backend"]) for cell in cells}) == len(cells)
    assert all(len(set(sent)) == len(sent) for sent in prompts.values())
    result = read_result(tmp_path)
    assert result["run"] == file.parent.name
    pairs = Counter(cell["pair"] for cell in cells if not cell["void"])  # one whose second cell was void has one left
    assert len(result["cells"]) == sum(count for count in pairs.values() if count == 2)
    assert result["crossover"]["throughput"]["point"] == pytest.approx(crossing(LOW, HIGH), rel=0.2)


async def test_a_run_is_not_resumed_on_another_engine_nor_from_another_folder(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        process = await start(gateway, tmp_path, *SHORT)
        file = await wait_for_lines(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        gateway.engines["vllm"]["version"] = "0.25.0"
        changed = await calibrate(gateway, tmp_path, "--resume", str(file.parent))
        other = await calibrate(gateway, tmp_path, "--resume", str(tmp_path))
    assert changed.exit_code == 3, changed
    assert "ENGINES CHANGED while measuring: vllm version was 0.24.0, is 0.25.0" in changed.stderr
    assert other.exit_code == 2
    assert "is not the folder of a run that can be resumed" in other.stderr


async def test_no_gateway_is_one_line_and_exit_code_2_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for shapes in ((), ("--shape", "8x8", "--shape", "9x8")):
        outcome = await calibrate(None, tmp_path / "runs", "--quick", *shapes)
        assert outcome.exit_code == 2
        assert "cannot connect to http://127.0.0.1:9" in outcome.stderr
        assert "Traceback" not in outcome.stderr
    assert not (tmp_path / "runs").exists()


async def test_several_shapes_are_calibrated_in_turn_and_only_the_first_is_applied(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        # Two pairs at each level, without refinement, leave some runs undecided by chance.
        measured = (*SHAPED, "--repeats", "3", "--apply")
        outcome = await calibrate(gateway, tmp_path, *measured, "--shape", "5x16", "--shape", "40x8")
        assert gateway.policy["version"] == 2
    assert outcome.exit_code == 0, outcome
    (series,) = list_folders(tmp_path)
    first, other = (read_shape(series, shape) for shape in ("5x16", "40x8"))
    assert (first["shape"]["completion_tokens"], other["shape"]["completion_tokens"]) == (16, 8)
    assert gateway.policy["calibration"] == first["run"]
    assert (first["applied"] is None, other["applied"] is None) == (False, True)
    assert "shapes     The crossing" in outcome.stdout
    assert f"{series.name}-40x8/report.html" in (series / "shapes.html").read_text()


@pytest.mark.alone  # what is measured has to be finished by the second half, not before the signal
async def test_a_calibration_of_shapes_continues_with_the_shape_it_was_broken_off_in(tmp_path: Path) -> None:
    shapes = ("5x8", "6x8", "7x8")
    async with FakeGateway(LOW, HIGH) as gateway:
        process = await start(gateway, tmp_path, *SHAPED, *(part for shape in shapes for part in ("--shape", shape)))
        await read_until(process, rb"shape 6x8, 2 of 3", rb" +\d+  triton")
        process.send_signal(signal.SIGINT)
        await process.communicate()
        (series,) = list_folders(tmp_path)
        before = (series / f"{series.name}-5x8/cells.jsonl").read_bytes()
        outcome = await calibrate(gateway, tmp_path, "--resume", str(series))
    assert process.returncode == 130
    assert outcome.exit_code in {0, 4}, outcome  # 4: measured to the end, too noisily for a threshold
    assert (series / f"{series.name}-5x8/cells.jsonl").read_bytes() == before
    for shape in shapes:
        lines = (series / f"{series.name}-{shape}/cells.jsonl").read_text().splitlines()
        assert len({(cell["pair"], cell["backend"]) for cell in map(json.loads, lines)}) == len(lines)
        assert read_shape(series, shape)["status"] in {"complete", "unresolved"}
        assert f"{series.name}-{shape}/report.html" in (series / "shapes.html").read_text()
    assert "shape 7x8, 3 of 3" in outcome.stdout


def list_folders(out: Path) -> list[Path]:
    return list(out.glob("*"))


def read_shape(series: Path, shape: str) -> Any:  # Any: JSON
    return json.loads((series / f"{series.name}-{shape}" / "result.json").read_bytes())
