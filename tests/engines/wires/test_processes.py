"""Both servers as processes: one ready line, a taken port, signals, what a pace does to real streams."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc as rpc

from engines.process import bind
from tests.engines.wires.servers import ROOT, Server, free_ports, long_request, read_metric, serving, triton_ports

KSERVE = ("engines.reference.kserve", "--grpc-port", "0", "--metrics-port", "0")
VLLM = ("engines.reference.vllm_http", "--port", "0")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


@pytest.mark.parametrize("which", ["grpc", "metrics", "http", "triton"])
def test_taken_port_is_one_clear_line_and_exit_code_1(which: str) -> None:
    taken, free, other = free_ports(3)
    arguments = {
        "grpc": ("engines.reference.kserve", "--grpc-port", taken, "--metrics-port", free),
        "metrics": ("engines.reference.kserve", "--grpc-port", free, "--metrics-port", taken),
        "http": ("engines.reference.vllm_http", "--port", taken),
        "triton": ("engines.triton", "--grpc-port", taken, "--http-port", free, "--metrics-port", other),
    }
    with socket.create_server(("127.0.0.1", int(taken))):
        ended = run(*arguments[which])
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == f"error: cannot listen on 127.0.0.1:{taken}: Address already in use\n"


@pytest.mark.parametrize("command", [KSERVE, VLLM], ids=["kserve", "vllm_http"])
def test_missing_model_is_one_clear_line_and_exit_code_1(command: tuple[str, ...], tmp_path: Path) -> None:
    ended = run(*command, "--model-dir", str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: cannot load the model: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--pace", "demo"), r"--pace demo: \S+pairs\.json has demo:low, demo:high, tp-dp:low, .*"),
        (("--pace", "demo:low", "--pairs", "/nowhere"), r"cannot read the pairs: .*'/nowhere'"),
        (("--no-compute",), "--no-compute and --shared-gpus need --pace"),
    ],
)
def test_a_pace_that_cannot_be_is_one_clear_line_and_exit_code_1(options: tuple[str, ...], line: str) -> None:
    ended = run(*VLLM, *options)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(f"error: {line}\n", ended.stderr)


def test_triton_without_its_environment_is_one_clear_line_and_exit_code_1(tmp_path: Path) -> None:
    ended = run("engines.triton", "--venv", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: no nvidia-pytriton in {tmp_path}: run `make stacks` (Linux x86-64)\n"


def test_interpreter_that_triton_has_no_stub_for_names_those_that_it_has(tmp_path: Path) -> None:
    triton = tmp_path / "lib/python3.14/site-packages/pytriton/tritonserver"
    for version in ("3.9", "3.10", "3.11"):
        stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
        stub.parent.mkdir(parents=True)
        stub.touch()
    (triton / "bin").mkdir()
    (triton / "bin/tritonserver").touch()
    (triton / "backends/python").mkdir(parents=True)
    ended = run("engines.triton", "--venv", str(tmp_path), *triton_ports())
    assert ended.returncode == 1
    assert ended.stderr == f"error: {tmp_path} has Python 3.14; Triton's Python backend here runs 3.10, 3.11\n"


async def test_signal_ends_a_server_whose_streams_still_run(capfd: pytest.CaptureFixture[str]) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with serving(*VLLM, "--pace", "demo:high") as server:
        url = f"{server.addresses[0]}/v1/completions"
        async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
            await response.content.readuntil(b"\n\n")
            assert await asyncio.to_thread(server.end) == 0
            *_, last, done, _ = (await response.read()).split(b"\n\n")
    assert b'"finish_reason":"abort"' in last
    assert done == b"data: [DONE]"
    assert capfd.readouterr().err == ""


def channel_to(server: Server) -> grpc.Channel:
    return grpc.insecure_channel(server.addresses[0].removeprefix("grpc://"))


def test_signal_ends_a_grpc_server_whose_streams_still_run(capfd: pytest.CaptureFixture[str]) -> None:
    with serving(*KSERVE, "--pace", "demo:low") as server, channel_to(server) as channel:
        stream = rpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([long_request()]))
        deadline = time.monotonic() + 30
        while not read_metric(server.addresses[1], "nv_trt_llm_request_metrics", request_type="active"):
            assert time.monotonic() < deadline
        assert server.end() == 0
        with pytest.raises(grpc.RpcError, match="GRPC server is shutting down"):
            next(stream)
    assert "Traceback" not in capfd.readouterr().err


async def test_connections_to_a_bound_socket_send_small_writes_at_once() -> None:
    nodelay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        nodelay.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bind("127.0.0.1", 0) as listener:
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await nodelay
            writer.close()
            await writer.wait_closed()


async def test_scale_out_can_be_off() -> None:
    with serving(*VLLM, "--no-scale-out") as server:
        async with aiohttp.ClientSession(server.addresses[0]) as http:
            for path in ("/inference/v1/generate", "/inference/v1/abort_requests"):
                async with http.post(path, json={}) as response:
                    error = (await response.json())["error"]
                assert (response.status, error["type"]) == (403, "PermissionDeniedError")
            async with http.post("/v1/completions", json={"prompt": [1], "max_tokens": 1}) as response:
                assert response.status == 200
