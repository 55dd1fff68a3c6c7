"""Readiness against scripted backends, in real time at short intervals."""

import asyncio
import logging

import pytest

from gateway.routing.health import Health, watching
from gateway.settings import ProbeSettings
from tests.fakes.backend import Pause, ScriptedBackend
from tests.fakes.sink import settled
from tests.routing.conftest import Node

FAST = ProbeSettings(interval_s=0.02, down_interval_s=0.01)
NEVER_AGAIN = ProbeSettings(interval_s=3600, down_interval_s=3600)


async def test_inside_every_backend_has_been_asked_once(node: Node) -> None:
    node.forget("triton", "vllm")
    node.backends["vllm"].ready = False
    async with node.router.watching():
        ready = {name: backend.is_ready for name, backend in node.router.model_state().backends.items()}
        assert ready == {"triton": True, "vllm": False}
        assert [health.was_ready for health in node.fleet.healths.values()] == [True, False]


async def test_a_backend_that_stops_and_comes_back_is_noticed_both_times(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = ScriptedBackend("triton")
    health = Health(backend, FAST, "triton (llama)")
    async with watching([health]):
        assert health.is_ready
        backend.ready = False
        await settled(lambda: not health.is_ready, "not ready")
        assert health.was_ready
        backend.ready = True
        await settled(lambda: health.is_ready, "ready")
    assert caplog.messages == [
        "backend triton (llama) is ready",
        "backend triton (llama) is not ready",
        "backend triton (llama) is ready",
    ]


async def test_a_doubt_counts_at_once_and_a_good_probe_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    backend = ScriptedBackend("triton")
    health = Health(backend, ProbeSettings(interval_s=3600, down_interval_s=0.01), "triton (llama)")
    async with watching([health]):
        health.doubt("triton cannot be reached")
        assert not health.is_ready
        await settled(lambda: health.is_ready, "ready")  # well before the hour is over
    assert caplog.messages == ["backend triton (llama) is down: triton cannot be reached"]


async def test_a_probe_under_way_does_not_overrule_a_later_doubt() -> None:
    answering, answered = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedBackend):
        async def is_ready(self) -> bool:
            answering.set()
            await answered.wait()
            return True

    health = Health(Slow("triton"), NEVER_AGAIN, "triton (llama)")
    async with asyncio.TaskGroup() as tasks:
        watcher = tasks.create_task(health.watch())
        await answering.wait()
        health.doubt("triton cannot be reached")
        answered.set()
        await health.probed.wait()
        assert not health.is_ready
        watcher.cancel()


async def test_a_backend_that_passes_probes_but_fails_requests_is_not_probed_without_pause() -> None:
    backend = ScriptedBackend("triton")
    health = Health(backend, ProbeSettings(interval_s=3600, down_interval_s=0.05), "triton (llama)")
    async with watching([health]):
        started = asyncio.get_running_loop().time()
        for _ in range(4):
            health.doubt("triton cannot be reached")
            await settled(lambda: health.is_ready, "ready")
        assert asyncio.get_running_loop().time() - started >= 4 * 0.05
        assert backend.probes == 5


async def test_a_probe_that_raises_means_not_ready_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(ScriptedBackend):
        async def is_ready(self) -> bool:
            self.probes += 1
            raise RuntimeError("a bug in an adapter")

    faulty, sound = Faulty("triton"), ScriptedBackend("vllm")
    healths = [Health(faulty, FAST, "triton (llama)"), Health(sound, FAST, "vllm (llama)")]
    async with watching(healths):
        await settled(lambda: faulty.probes >= 3 and sound.probes >= 3, "three probes of each")
        assert [health.is_ready for health in healths] == [False, True]
    assert "a bug in an adapter" in caplog.text


async def test_leaving_ends_every_probe() -> None:
    backend = ScriptedBackend("triton")
    before = asyncio.all_tasks()
    async with watching([Health(backend, FAST, "triton (llama)")]):
        pass
    assert asyncio.all_tasks() == before


async def test_a_trial_that_waited_for_its_token_in_vain_is_followed_by_no_longer_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.routing.trial.TIMEOUT_S", 0.4)
    monkeypatch.setattr("gateway.routing.conduct.FIRST_PAUSE_S", 0.4)
    monkeypatch.setattr("gateway.routing.conduct.MOST_PAUSE_S", 0.4)
    backend = ScriptedBackend("triton", [Pause()])
    health = Health(backend, FAST, "triton (llama)")
    async with watching([health]):
        health.eject("it generates nothing")
        await settled(lambda: len(backend.calls) == 1, "a trial")
        began = asyncio.get_running_loop().time()
        await settled(lambda: len(backend.calls) == 2, "another trial")
        assert 0.4 < asyncio.get_running_loop().time() - began < 0.6
    assert backend.renewed == 1
