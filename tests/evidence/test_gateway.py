"""What an operator sees of the engines, through a real gateway before the reference engine's own servers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from deploy.stacks import MODEL
from gateway import __version__
from gateway.cli import main
from loadtest.admin import apply_policy, confirm_engines, find_system
from loadtest.client.target import Target
from tests.engines.wires.servers import Server, free_ports, serving
from tests.evidence.serving import Gateway, becomes, gateway

# Slow motion: a few hundred tokens take longer than any test.
SLOW = ("--pace", "demo:high", "--time-scale", "20")
LONG: dict[str, object] = {"model": MODEL, "stream": True, "max_tokens": 900, "ignore_eos": True}
LABELS = 'backend="{}",model="' + MODEL + '"'
SILENT = "silent"
ENGINE = {"steps_ms": [[1, 5.0], [64, 9.0]], "prompt_ms": 20.0, "max_sequences": 64}
NODE = {"low": ENGINE, "high": ENGINE, "interference": 1.0, "prompt_tokens": 80, "answer_tokens": 128}

pytestmark = pytest.mark.timeout(120)  # a start of everything may fall into any of these


def vllm(port: str, name: str = "vllm", *options: str) -> Any:  # Any: serving's own context manager
    return serving("engines.reference.vllm_http", "--port", port, "--served-model-name", name, *options)


@pytest.fixture(scope="module")
def triton() -> Iterator[Server]:
    with serving("engines.reference.kserve", "--grpc-port", "0", "--metrics-port", "0") as server:
        yield server


@pytest.fixture(scope="module")
def slow_port() -> Iterator[str]:
    (port,) = free_ports(1)
    with vllm(port, MODEL, *SLOW):
        yield port


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, triton: Server, slow_port: str) -> Iterator[Gateway]:
    """Before engines that anybody may use, and, for the model SILENT, before such as tell nothing."""
    (dead,) = free_ports(1)
    untold = backends(triton, dead)
    del untold["triton"]["metrics_url"]
    models = {MODEL: backends(triton, slow_port), SILENT: untold}
    with gateway(tmp_path_factory.mktemp("slow"), models) as ours:
        yield ours


@dataclass
class Site:
    """A gateway, and a vLLM behind it that another can take the place of; only the gateway sends them requests."""

    ours: Gateway
    port: str
    engines: ExitStack
    running: Server

    def replace(self, name: str) -> None:
        assert self.running.end() == 0
        self.running = self.engines.enter_context(vllm(self.port, name))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, triton: Server) -> Iterator[Site]:
    (port,) = free_ports(1)
    with ExitStack() as engines:
        first = engines.enter_context(vllm(port, MODEL))
        with gateway(tmp_path_factory.mktemp("site"), {MODEL: backends(triton, port)}) as ours:
            yield Site(ours, port, engines, first)


def backends(triton: Server, vllm_port: str) -> dict[str, dict[str, str]]:
    grpc, metrics = triton.addresses
    return {
        "triton": {"kind": "triton", "url": grpc, "metrics_url": metrics},
        "vllm": {"kind": "vllm", "url": f"http://127.0.0.1:{vllm_port}"},
    }


@asynccontextmanager
async def asking(url: str, body: dict[str, object], headers: dict[str, str] | None = None) -> AsyncIterator[None]:
    """A stream that has begun; on leaving, its client hangs up."""
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url, json=LONG | body, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        pieces = answer.aiter_bytes()  # held: when it is collected, the answer is closed
        await anext(pieces)
        yield


async def test_what_a_stranger_sends_is_drift_until_it_leaves(slow: Gateway, slow_port: str) -> None:
    await slow.counts("vllm", in_flight=0, engine_in_flight=0, drift=0, steady_drift=0)
    async with AsyncExitStack() as stack:
        users, messages = f"{slow.url}/v1/chat/completions", [{"role": "user", "content": "Tell me a story."}]
        for _ in range(2):
            await stack.enter_async_context(asking(users, {"messages": messages}, {"x-crossover-pin": "vllm"}))
        await slow.counts("vllm", in_flight=2, engine_in_flight=2, drift=0)
        for _ in range(3):
            await stack.enter_async_context(asking(f"http://127.0.0.1:{slow_port}/v1/completions", {"prompt": "Once"}))
        await slow.counts("vllm", in_flight=2, engine_in_flight=5, drift=3, steady_drift=3)
        await slow.counts("triton", in_flight=0, engine_in_flight=0, drift=0)
        assert slow.metric("crossover_drift") == {LABELS.format("vllm"): 3, LABELS.format("triton"): 0}
        assert slow.backend("vllm", "evidence_age_s")["evidence_age_s"] >= 0
        assert slow.metric("crossover_engine_in_flight")[LABELS.format("vllm")] == 5
        await slow.logs("more than this gateway has sent it, for 0.5 s: somebody else uses it")
    await slow.counts("vllm", in_flight=0, engine_in_flight=0, drift=0, steady_drift=0)
    await slow.logs(f"vllm ({MODEL}) holds again what it was sent")


async def test_every_worker_shows_what_one_reads_and_takes_over(tmp_path: Path, triton: Server, slow_port: str) -> None:
    strangers = f"http://127.0.0.1:{slow_port}/v1/completions"
    with gateway(tmp_path, {MODEL: backends(triton, slow_port)}, workers=2) as ours:
        async with asking(strangers, {"prompt": "Once"}):
            await ours.counts("vllm", engine_in_flight=1, drift=1, steady_drift=1)
            await becomes(lambda: ours.by_worker("vllm", "drift"), {0: 1, 1: 1})
            os.kill(ours.pid_of(0), signal.SIGKILL)
            async with asking(strangers, {"prompt": "Twice"}):
                await becomes(lambda: ours.by_worker("vllm", "drift"), {0: 2, 1: 2})


async def test_engines_that_do_not_tell_are_unknown_and_not_zero(slow: Gateway) -> None:
    told = await slow.engine("triton", SILENT)
    assert (told["engine"], told["model"]) == ("triton", "tensorrt_llm")
    assert slow.read("/version")["version"] == __version__
    assert slow.read("/version")["models"][SILENT]["vllm"] == {"engine": None, "version": None}
    for name in ("triton", "vllm"):
        await slow.counts(name, SILENT, engine_in_flight=None, drift=None, steady_drift=None)
    for metric in ("crossover_drift", "crossover_engine_in_flight"):
        assert (len(slow.metric(metric)), slow.metric(metric, SILENT)) == (2, {})


async def test_relayed_engines_are_watched_as_far_as_they_speak_vllms_words(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    relays = {
        "triton": {"kind": "relay", "url": "http://127.0.0.1:9"},
        "vllm": {"kind": "relay", "url": url, "metrics_url": f"{url}/metrics"},
    }
    with vllm(port, MODEL, *SLOW), gateway(tmp_path, {MODEL: relays}) as ours:
        body: dict[str, object] = {"prompt": "Once"}
        async with (
            asking(f"{ours.url}/v1/completions", body, {"x-crossover-pin": "vllm"}),
            asking(f"{url}/v1/completions", body),
        ):
            await ours.counts("vllm", in_flight=1, engine_in_flight=2, drift=1, steady_drift=1)
        await ours.counts("vllm", in_flight=0, engine_in_flight=0, drift=0)
        await ours.counts("triton", engine_in_flight=None, drift=None)
        told = ours.read("/version")["models"][MODEL]["vllm"]
        assert (told["engine"], told["model"]) == (None, MODEL)
        assert told["version"] is not None


async def test_load_of_our_own_leaves_no_drift_behind(site: Site) -> None:
    ours = site.ours
    async with httpx.AsyncClient(timeout=60) as client:

        async def ask(number: int) -> int:
            body = {"model": MODEL, "messages": [{"role": "user", "content": f"Story {number}"}], "max_tokens": 30}
            headers = {"x-crossover-pin": "triton" if number % 2 else "vllm"}
            answer = await client.post(f"{ours.url}/v1/chat/completions", json=body, headers=headers)
            return answer.status_code

        assert set(await asyncio.gather(*map(ask, range(60)))) == {200}
    for name in ("triton", "vllm"):
        await ours.counts(name, in_flight=0, engine_in_flight=0, drift=0, steady_drift=0)
    assert "more than this gateway has sent" not in ours.log.read_text()


async def test_a_policy_is_stale_while_an_engine_is_not_the_one_it_was_measured_on(site: Site) -> None:
    ours = site.ours
    fingerprint = {name: await ours.engine(name) for name in ("triton", "vllm")}
    planned = {"kind": "curve", "node": NODE, "up": None, "down": None}
    measured = ours.put(**planned, calibration="run-1", fingerprint=fingerprint)
    assert (measured["kind"], measured["fingerprint"], measured["stale"]) == ("curve", fingerprint, [])
    assert ours.metric("crossover_policy_stale") == {f'model="{MODEL}"': 0}
    site.replace("second")
    change = {"backend": "vllm", "field": "model", "old": MODEL, "new": "second"}
    await ours.is_stale(change)
    assert ours.read("/admin/state")["models"][0]["policy"]["stale"] == [change]
    assert ours.metric("crossover_policy_stale") == {f'model="{MODEL}"': 1}
    await ours.logs(f"measured on other engines than it steers now (vllm model was {MODEL}, is second)")
    shown = CliRunner().invoke(main, ["policy", "show", "--url", ours.url])
    assert f"STALE: measured on other engines (vllm model was {MODEL}, is second)" in shown.output
    site.replace(MODEL)
    await ours.is_stale()
    await ours.counts("vllm", ready=True)  # the tests after this one want it


async def test_what_a_calibration_applies_holds_the_engines_it_measured(site: Site) -> None:
    engines = {name: await site.ours.engine(name) for name in ("triton", "vllm")}
    target = Target.parse(site.ours.url)
    system = await confirm_engines(target, await find_system(target, MODEL))
    assert system.engines == engines
    applied = await apply_policy(target, system, {"up": 30, "down": 20}, "run-1")
    assert (applied["calibration"], applied["fingerprint"], applied["stale"]) == ("run-1", engines, [])
    again = await apply_policy(target, replace(system, engines={}), {"up": 31, "down": 20}, "run-2")
    assert (again["up"], again["fingerprint"]) == (31, None)


async def test_a_policy_set_by_hand_is_never_stale(site: Site) -> None:
    ours = site.ours
    await ours.engine("vllm")
    stale = ours.put(fingerprint={"vllm": {"model": "another"}})
    assert stale["stale"] == [{"backend": "vllm", "field": "model", "old": "another", "new": MODEL}]
    edited = CliRunner().invoke(main, ["policy", "set", "--url", ours.url, "--up", "50"])
    assert edited.exit_code == 0, edited.output
    policy = ours.read("/admin/policy")
    assert (policy["up"], policy["fingerprint"], policy["stale"]) == (50, None, [])
