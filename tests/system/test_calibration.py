"""Calibrations of whole stacks: the demo finds the crossing that paces its engines; real engines do equal work."""

import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from deploy.demo import ANSWER_TOKENS, TIME_SCALE
from deploy.embedded import HELD, Pace
from deploy.launch import Launched
from deploy.ports import find_free
from deploy.probes import read_json
from deploy.stacks import MODEL, crossover_script
from tests.deploy.demo_process import Demo

PACE = Pace(TIME_SCALE, ANSWER_TOKENS)
TRUE_CROSSING = PACE.crossing or 0.0
LEVELS = (2, 32)
OF_THE_MACHINE = {"client headroom", "no lockstep", "steady load"}  # checks
# Of the pace, in one cell: below it the machine is too slow, and what such a run still measures means nothing.
HOPELESS = 0.9


class CalibratingDemo:
    """`crossover demo` with the options of `make demo`, and its calibration's result."""

    def __init__(self, port: int, run_dir: Path, exits: ExitStack) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = exits.enter_context(closing(Demo("--port", str(port), run_dir=run_dir)))
        self._out = run_dir / "calibration"

    def wait(self) -> float:
        """Until it serves, or has fallen hopelessly behind its pace. Returns the least share of it that was held."""
        is_over = partial(self.process.has_shown, f"ready {re.escape(self.url)}/v1")
        deadline = time.monotonic() + 270
        while not is_over() and self._held() >= HOPELESS:
            assert self.process.process.poll() is None, self.process.output
            assert time.monotonic() < deadline, self.process.output
            time.sleep(0.5)
        return self._held()

    @property
    def result(self) -> dict[str, Any]:  # Any: JSON
        return read_result(self._out)

    def _held(self) -> float:
        """Of the cells so far; a broken line at the end of their file is one that is being written."""
        lines = [
            line for file in self._out.glob("*/cells.jsonl") for line in file.read_text().splitlines(keepends=True)
        ]
        cells = [json.loads(line) for line in lines if line.endswith("\n")]
        return PACE.least_held(cell for cell in cells if not cell["void"])[0] if cells else 1.0


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Callable[[str], CalibratingDemo]]:
    with ExitStack() as exits:
        yield lambda name: CalibratingDemo(find_free(1)[0], tmp_path / name, exits)


def read_result(out: Path) -> dict[str, Any]:  # Any: JSON
    (path,) = out.glob("*/result.json")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def status_of(result: dict[str, Any], name: str) -> str:
    """What became of one of the run's own checks."""
    return next(str(check["status"]) for check in result["checks"] if check["name"] == name)


def is_quiet(result: dict[str, Any]) -> bool:
    """Whether no other program took the machine."""
    return status_of(result, "quiet machine") == "passed"


def ask(url: str, question: str) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": question}]  # Any: the client's union of message types
        answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    content: str | None = answer.choices[0].message.content
    return content


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_the_demo_finds_the_crossing_that_paces_it_sets_the_policy_and_answers(
    start_demo: Callable[[str], CalibratingDemo],
) -> None:
    demo = start_demo("first")
    held = demo.wait()
    # Where another program was in the way, or so much noise that the set is too wide for a threshold, once more.
    if held >= HOPELESS and not (held >= HELD and is_quiet(demo.result) and demo.result["threshold"]):
        assert demo.process.end() == 0
        demo = start_demo("second")
        held = demo.wait()
    if held < HELD or not is_quiet(demo.result):
        assert ask(demo.url, "What is the capital of France?") == "The capital of France is Paris."
        assert demo.process.end() in {0, 130}  # 130 if it was still calibrating
        pytest.skip(f"this machine is too slow or too busy: the engines held {held:.0%} of their pace")
    crossover = demo.result["crossover"]["throughput"]
    assert crossover["verdict"] == "crossing"
    assert demo.result["threshold"], crossover
    assert crossover["point"] == pytest.approx(TRUE_CROSSING, rel=0.2)
    policy = read_json(f"{demo.url}/admin/policy")
    assert (policy["low"], policy["high"]) == ("triton", "vllm")
    lowest, highest = crossover["set"][0][0], crossover["set"][-1][1]
    threshold = demo.result["threshold"]
    assert threshold["up"] == pytest.approx(max(highest, 1.15 * crossover["point"]), abs=1)
    assert threshold["down"] == pytest.approx(min(lowest, 0.85 * crossover["point"]), abs=1)
    assert policy["kind"] == "curve"
    assert policy["node"] == demo.result["node"]
    assert policy["calibration"] == demo.result["run"]
    assert set(policy["fingerprint"]) == {"triton", "vllm"}
    assert (policy["fingerprint"], policy["stale"]) == (demo.result["fingerprint"]["engines"], [])
    assert ask(demo.url, "What is the capital of France?") == "The capital of France is Paris."
    assert demo.result["duration_s"] > 0
    print(f"measured {crossover['point']} for {TRUE_CROSSING:.2f} in {demo.result['duration_s']} s")  # noqa: T201 - -rP
    assert demo.process.end() == 0


@pytest.mark.slow
def test_a_calibration_of_the_real_engines_finds_equal_work_and_leaves_the_policy(
    cpu_stack: Launched, tmp_path: Path
) -> None:
    policy = read_json(f"{cpu_stack.url}/admin/policy")
    options = ("--quick", "--levels", ",".join(map(str, LEVELS)), "--budget", "1")
    command = (crossover_script(), "calibrate", "--url", cpu_stack.url, *options, "--out", str(tmp_path))
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    # Two levels need not show a crossing, nor the right way round; and where tests of the other worker take a core, the
    # client may be starved and the load in lockstep, which a run is rightly refused for.
    assert ended.returncode in {0, 3, 4}, ended
    result = read_result(tmp_path)
    assert {check["name"] for check in result["checks"] if check["status"] == "failed"} <= OF_THE_MACHINE, ended
    assert [status_of(result, name) for name in ("equal work", "routing")] == ["passed", "passed"]
    measured = {(cell["level"], cell["backend"]) for cell in result["cells"]}
    assert measured == set(itertools.product(LEVELS, ("triton", "vllm")))
    assert result["applied"] is None
    assert read_json(f"{cpu_stack.url}/admin/policy") == policy
