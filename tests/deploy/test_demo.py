"""`crossover demo` as a user runs it: a process with options, output, signals and an exit code."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from deploy.ports import LOCALHOST, find_free, is_taken
from deploy.stacks import MODEL, ROOT
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


def test_demo_serves_the_openai_client_until_ctrl_c_and_leaves_nothing(start: Start, port: int, tmp_path: Path) -> None:
    demo = start("--no-calibrate", "--port", str(port))
    demo.wait_for(rf"ready http://127\.0\.0\.1:{port}/v1", 50)
    children = find_children(demo.process.pid)
    assert len(children) == 8, "three processes, each on its leash, and the supervisor and the worker of the gateway"
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
        assert "Paris" in (answer.choices[0].message.content or "")
        chunks = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert json.loads((tmp_path / "run/node.json").read_text())["interference"] == 1.0
    assert demo.end() == 0
    assert not [command for pid, command in children.items() if is_running(pid)]
    assert not is_taken(port)


def test_demo_of_a_pair_serves_from_a_folder_named_from_here(port: int, tmp_path: Path) -> None:
    run_dir = Path(os.path.relpath(tmp_path / "run"))
    demo = Demo("--pair", "tp-dp", "--time-scale", "1", "--no-calibrate", "--port", str(port), run_dir=run_dir)
    try:
        demo.wait_for(rf"ready http://127\.0\.0\.1:{port}/v1", 50)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as client:
            question: Any = {"role": "user", "content": QUESTION}  # Any: the client's own types
            answer = client.chat.completions.create(model=MODEL, messages=[question], max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert demo.end() == 0
    finally:
        demo.close()


def test_ctrl_c_while_calibrating_ends_the_demo_and_keeps_results(start: Start, port: int, tmp_path: Path) -> None:
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
