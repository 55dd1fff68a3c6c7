"""What `curve` has learned of engines outlives the gateway, and goes with the engine that it was learned of."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from deploy.stacks import MODEL
from gateway.routing.learned import NAME
from tests.engines.wires.servers import Server, free_ports, serving
from tests.evidence.serving import Gateway, becomes, gateway
from tests.routing.nodes import read_node

SCALE, OFF = 8.0, 1.4  # slow motion, and how many times longer the engine takes than its model
STREAMS, TOKENS = 8, 250
NODE = {
    **asdict(read_node("tp-dp")),
    "low": asdict(read_node("tp-dp").low),
    "high": asdict(read_node("tp-dp").low.slowed(SCALE / OFF)),
}
CURVE = {"kind": "curve", "node": NODE, "up": None, "down": None}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # eight starts of processes, and ten seconds of load


class Engine:
    """A paced vLLM, which another may take the place of."""

    def __init__(self, port: str, engines: ExitStack) -> None:
        self.port = port
        self._engines = engines
        self._running = self._start(MODEL)

    def replace(self, name: str) -> None:
        assert self._running.end() == 0
        self._running = self._start(name)

    def _start(self, name: str) -> Server:
        options = (
            "--port",
            self.port,
            "--served-model-name",
            name,
            "--pace",
            "tp-dp:low",
            "--time-scale",
            f"{SCALE:g}",
        )
        return self._engines.enter_context(serving("engines.reference.vllm_http", *options))


@pytest.fixture
def engine() -> Iterator[Engine]:
    with ExitStack() as engines:
        yield Engine(free_ports(1)[0], engines)


@pytest.fixture
def triton() -> Iterator[Server]:
    with serving("engines.reference.kserve", "--grpc-port", "0", "--metrics-port", "0") as server:
        yield server


def backends(triton: Server, engine: Engine) -> Mapping[str, Mapping[str, str]]:
    return {
        "triton": {"kind": "triton", "url": triton.addresses[0]},
        "vllm": {"kind": "vllm", "url": f"http://127.0.0.1:{engine.port}"},
    }


def find_scales(ours: Gateway) -> Mapping[str, float]:
    readings: Mapping[str, float] = ours.backend("vllm", "readings")["readings"]
    return {key: value for key, value in readings.items() if key != "forecast_error"}


async def kill(ours: Gateway, worker: int) -> None:
    """Returns when another one is in its place."""
    pid = ours.pid_of(worker)
    os.kill(pid, signal.SIGKILL)

    def is_replaced() -> bool:
        workers = ours.strangers.get("/admin/state").json()["workers"]
        return len(workers) == 4 and all(each["pid"] != pid for each in workers)

    await becomes(is_replaced, True)


async def load(ours: Gateway) -> None:
    """Has the engine decode for a while: some twenty windows."""
    body = {"model": MODEL, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=60) as client:

        async def ask(number: int) -> None:
            messages = [{"role": "user", "content": f"Story {number}"}]
            url, headers = f"{ours.url}/v1/chat/completions", {"x-crossover-pin": "vllm"}
            answer = await client.post(url, json=body | {"messages": messages}, headers=headers)
            assert answer.status_code == 200

        async with asyncio.TaskGroup() as tasks:
            for number in range(STREAMS):
                tasks.create_task(ask(number))


async def test_scales_outlive_gateways_and_workers_but_not_their_engine(
    tmp_path: Path, triton: Server, engine: Engine
) -> None:
    models, file = {MODEL: backends(triton, engine)}, tmp_path / "state" / NAME
    with gateway(tmp_path, models, workers=4) as ours:
        await ours.engine("vllm")
        ours.put(**CURVE)
        await load(ours)
        learned = find_scales(ours)
        assert learned["decode_scale"] == pytest.approx(OFF, rel=0.15)
        await kill(ours, 0)  # the one that writes
        assert find_scales(ours) == pytest.approx(learned, rel=0.05)
    kept = file.read_bytes()

    with gateway(tmp_path, models) as ours:
        assert find_scales(ours) == pytest.approx(learned, rel=0.05)
        await ours.engine("vllm")
        assert find_scales(ours) == pytest.approx(learned, rel=0.05)
        engine.replace("second")  # while the gateway runs
        await ours.logs(f"the policy of {MODEL} learns anew: vllm model was {MODEL}, is second")
        assert find_scales(ours) == {}
    assert not file.exists()

    file.write_bytes(kept)  # as if the engine had been replaced while no gateway was there
    with gateway(tmp_path, models) as ours:
        await ours.logs(f"the policy of {MODEL} learns anew: vllm model was {MODEL}, is second")
        assert find_scales(ours) == {}

    file.write_bytes(kept[: len(kept) // 2])
    with gateway(tmp_path, models) as ours:
        await ours.logs(f"the policy of {MODEL} learns anew, because {file} is of no use")
        assert find_scales(ours) == {}
