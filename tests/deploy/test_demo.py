"""`crossover demo` as a user runs it: a process with options, output, signals and an exit code."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from deploy.ports import LOCALHOST, find_free, is_taken
from deploy.stacks import MODEL, ROOT, crossover_script
from tests.deploy.demo_process import Demo
from tests.processes import find_children, is_running

QUESTION = "What is the capital of France?"


Start = Callable[..., Demo]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    demos: list[Demo] = []

    def start_demo(*options: str) -> Demo:
        demos.append(Demo(*options, run_dir=tmp_path / "run"))
        return demos[-1]

    yield start_demo
    for demo in demos:
        demo.close()


@pytest.fixture
def port() -> int:
    return find_free(1)[0]


def test_demo_serves_the_openai_client_until_ctrl_c_and_leaves_nothing(start: Start, port: int) -> None:
    demo = start("--no-calibrate", "--port", str(port))
    demo.wait_for(rf"ready http://127\.0\.0\.1:{port}/v1", 50)
    children = find_children(demo.process.pid)
    assert len(children) == 6, "three processes, each on its leash"
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
        assert "Paris" in (answer.choices[0].message.content or "")
        chunks = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert demo.end() == 0
    assert not [command for pid, command in children.items() if is_running(pid)]
    assert not is_taken(port)


def test_demo_ends_with_a_message_when_an_engine_dies(start: Start, port: int) -> None:
    demo = start("--no-calibrate", "--port", str(port))
    demo.wait_for(rf"ready http://127\.0\.0\.1:{port}/v1", 50)
    children = find_children(demo.process.pid)
    [engine] = [pid for pid, command in children.items() if "kserve" in command and "leash" not in command]
    os.kill(engine, signal.SIGKILL)
    assert demo.process.wait(30) == 1
    demo.end()
    assert "triton ended unexpectedly (killed by SIGKILL)" in demo.output
    assert not [command for pid, command in children.items() if is_running(pid)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_while_it_starts_leaves_nothing(
    start: Start, port: int, number: signal.Signals
) -> None:
    demo = start("--no-calibrate", "--port", str(port))
    deadline = time.monotonic() + 30
    while len(children := find_children(demo.process.pid)) < 6:
        assert time.monotonic() < deadline, demo.output
    assert demo.end(number) == 130
    assert not [command for pid, command in children.items() if is_running(pid)]


def test_ctrl_c_during_the_calibration_ends_the_demo_and_keeps_what_was_measured(
    start: Start, port: int, tmp_path: Path
) -> None:
    demo = start("--port", str(port), "--time-scale", "2")
    demo.wait_for(r" +1  (triton|vllm) .*", 50)
    children = find_children(demo.process.pid)
    assert any("calibrate" in command for command in children.values())
    assert demo.end() == 130
    assert not [command for pid, command in children.items() if is_running(pid)]
    assert not is_taken(port)
    (path,) = tmp_path.glob("run/calibration/*/result.json")
    assert json.loads(path.read_text())["status"] == "interrupted"


def test_taken_port_is_reported_before_anything_starts(start: Start, tmp_path: Path) -> None:
    with socket.create_server((LOCALHOST, 0)) as server:
        port = server.getsockname()[1]
        demo = start("--port", str(port))
        assert demo.process.wait(30) == 1
    demo.end()
    assert f"port {port} of 127.0.0.1 is taken" in demo.output
    assert not (tmp_path / "run").exists()


def test_cpu_stack_that_is_not_installed_exits_with_2(tmp_path: Path) -> None:
    for room in ("deploy", "engines"):  # a checkout without .stacks/
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("weights", "__pycache__"))
    command = [sys.executable, "-c", "from deploy.demo import demo; demo()", "--stack", "cpu"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "run `make stacks`" in ended.stderr


def test_help_shows_an_example() -> None:
    ended = subprocess.run([crossover_script(), "demo", "--help"], capture_output=True, text=True, check=True)
    assert "crossover demo --stack cpu" in ended.stdout
