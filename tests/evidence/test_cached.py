"""What an engine's prefix cache holds of live prompts, from the engine's usage to the demand that is planned for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deploy.stacks import MODEL
from tests.engines.wires.servers import Server, serving
from tests.evidence.serving import Gateway, gateway
from tests.routing.nodes import describe_node

PACE = ("--pace", "tp-dp:high", "--time-scale", "1")
CURVE = {"kind": "curve", "node": describe_node("tp-dp"), "up": None, "down": None}
STORY = "Once upon a time there was a gateway that knew two engines by heart. " * 20
PIN = {"x-crossover-pin": "vllm"}

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def triton() -> Iterator[Server]:
    with serving("engines.reference.kserve", "--grpc-port", "0", "--metrics-port", "0") as server:
        yield server


async def ask(ours: Gateway, question: str, count: int, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        for number in range(count):
            messages = [{"role": "user", "content": f"{question} {number}"}]
            body = {"model": MODEL, "messages": messages, "max_tokens": 4}
            answer = await client.post(f"{ours.url}/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200


def find_cached(ours: Gateway) -> dict[str, float | None]:
    return {name: ours.backend(name, "cached")["cached"] for name in ("triton", "vllm")}


@pytest.mark.parametrize(("options", "is_shown"), [(("--enable-prompt-tokens-details",), True), ((), False)])
async def test_the_demand_has_what_an_engine_says_that_its_cache_held(
    tmp_path: Path, triton: Server, options: tuple[str, ...], is_shown: bool
) -> None:
    with serving("engines.reference.vllm_http", "--port", "0", "--served-model-name", MODEL, *PACE, *options) as vllm:
        backends = {
            "triton": {"kind": "triton", "url": triton.addresses[0]},
            "vllm": {"kind": "vllm", "url": vllm.addresses[0]},
        }
        with gateway(tmp_path, {MODEL: backends}, workers=2) as ours:
            ours.put(**CURVE)
            await ask(ours, STORY, 20, PIN)
            await asyncio.sleep(1.0)  # far more than a beat
            shown = find_cached(ours)
            assert shown["triton"] is None
            assert (shown["vllm"] or 0.0) == pytest.approx(0.9 if is_shown else 0.0, abs=0.09)
            await ask(ours, STORY[::-1], 20, PIN | {"x-crossover-run": "run-1"})
            await asyncio.sleep(1.0)
            assert find_cached(ours) == shown  # a measurement, by which nobody plans
