"""The launcher of the real tritonserver: what it starts ends with it, and its errors name their cause."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc as rpc

from tests.engines.wires.servers import ROOT, Server, long_request, serving, triton_ports
from tests.processes import comes_true, find_children, is_running

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def options() -> tuple[str, ...]:
    return (*triton_ports(), "--exit-timeout", "3")


@contextmanager
def triton() -> Iterator[Server]:
    with serving("engines.triton", *options(), "--start-timeout", "200") as server:
        yield server


def test_signal_ends_tritonserver_its_stub_and_their_shared_memory_with_a_stream_in_flight() -> None:
    with triton() as server, grpc.insecure_channel(server.addresses[0].removeprefix("grpc://")) as channel:
        started = find_children(server.process.pid)
        assert len(started) == 2
        assert list(Path("/dev/shm").glob(f"crossover_{server.process.pid}_*"))
        stream = rpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([long_request()]))
        next(stream)
        assert server.end() == 0
    assert comes_true(lambda: not any(map(is_running, started)))
    assert not list(Path("/dev/shm").glob(f"crossover_{server.process.pid}_*"))


def test_launcher_ends_with_an_error_when_tritonserver_is_killed(capfd: pytest.CaptureFixture[str]) -> None:
    with triton() as server:
        pid, stub = find_children(server.process.pid)
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
        assert server.process.wait(60) == 1
    assert capfd.readouterr().err == "error: tritonserver ended by itself with exit code -9\n"
    assert not list(Path("/dev/shm").glob(f"crossover_{server.process.pid}_*"))
    assert comes_true(lambda: not is_running(stub))


def test_signal_while_tritonserver_starts_ends_it() -> None:
    command = [sys.executable, "-m", "engines.triton", *options()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        server = Server(process, [])
        deadline = time.monotonic() + 60
        while len(find_children(server.process.pid)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        started = find_children(server.process.pid)
        assert process.wait(60) == 0
        assert comes_true(lambda: not any(map(is_running, started)))
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_model_that_cannot_start_ends_the_launcher_with_the_reason(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo/python", tmp_path / "repository")
    config = tmp_path / "repository/tensorrt_llm/config.pbtxt"
    config.write_text(config.read_text().replace('"reference"', '"tensorrt_llm"'))
    command = [sys.executable, "-m", "engines.triton", *options(), "--model-repository", str(tmp_path / "repository")]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: tritonserver ended with exit code 1; from its log:\n")
    assert "MissingEngine: No module named 'torch': the engine has to be installed for the Python" in ended.stderr
