"""Servers as processes on real sockets, and the values of their metrics pages."""

import asyncio
import os
import re
import selectors
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from deploy.ports import find_free

ROOT = Path(__file__).parents[3]
WEIGHTS = ROOT / "engines/reference/weights"
STARTUP_S = 240.0  # two cores may be shared with others; idle ones need a tenth


@dataclass
class Server:
    """A process of ours and the addresses of its ready line."""

    process: subprocess.Popen[str]
    addresses: list[str]

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextmanager
def serving(module: str, *options: str) -> Iterator[Server]:
    """`python -m module` until the block is left; its stderr is ours."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # noqa: TID251 - starts processes
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        try:
            yield Server(process, ready_line(process).split()[1:])
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(STARTUP_S), "no ready line"
    line = process.stdout.readline()
    assert line.startswith("ready "), f"got {line!r}, exit code {process.poll()}"
    return line


def free_ports(count: int) -> list[str]:
    return [str(port) for port in find_free(count)]


def triton_ports() -> tuple[str, ...]:
    """Free ports as options of engines.triton."""
    grpc, http, metrics = free_ports(3)
    return ("--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics)


def long_request() -> pb.ModelInferRequest:
    """Of a thousand tokens, streamed."""
    request = pb.ModelInferRequest(model_name="tensorrt_llm", id="long")
    for name, values in (("input_ids", [5, 6]), ("input_lengths", [2]), ("request_output_len", [1000])):
        request.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        request.raw_input_contents.append(np.array(values, np.int32).tobytes())
    request.inputs.add(name="streaming", datatype="BOOL", shape=[1, 1])
    request.raw_input_contents.append(b"\x01")
    return request


def read_metric(url: str, name: str, **labels: str) -> float:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
    for line in page.splitlines():
        found = re.match(rf"{re.escape(name)}{{(.*)}} (\S+)$", line)
        if found and all(f'{key}="{value}"' in found[1] for key, value in labels.items()):
            return float(found[2])
    raise AssertionError(f"no {name} with {labels} in:\n{page}")


async def metric_becomes(is_expected: Callable[[float], bool], url: str, name: str, **labels: str) -> None:
    """Fails if it has not within thirty seconds: far more than an engine needs, for the machine may be busy."""
    async with asyncio.timeout(30):
        value = await asyncio.to_thread(read_metric, url, name, **labels)
        while not is_expected(value):
            await asyncio.sleep(0.02)
            value = await asyncio.to_thread(read_metric, url, name, **labels)


def is_zero(value: float) -> bool:
    return value == 0


def is_positive(value: float) -> bool:
    return value > 0
