"""/admin/calibrations on `crossover serve` as a process of two workers, before engines whose crossing is known."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
import yaml

from gateway.access import KeyFile, Scope
from tests.fakes.script import Asked, FakeEngine, Full, Pause, Say, Step
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM
from tests.processes import is_running
from tests.serving.stack import TOKENIZER, eventually
from tests.serving.test_serve import STARTS_WITHIN_S, start

Json: TypeAlias = Any  # whatever the server answered

KEY = "the-operators-key"
SMALL = {"quick": True, "tokens": 4, "levels": [1, 8], "budget_s": 0}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own processes


@dataclass(frozen=True)
class Paced(Pause):
    """A token of an engine that takes `per_request_s` longer for every answer under way."""

    seconds: float = 0.0
    per_request_s: float = 0.0
    engine: FakeEngine | None = None

    async def wait(self) -> None:
        assert self.engine is not None
        await asyncio.sleep(self.seconds + self.per_request_s * self.engine.running)


def pace(engine: FakeEngine, read_length: Callable[[Json], int], base_s: float, per_request_s: float) -> None:
    def write(asked: Asked) -> Sequence[Step]:
        token: list[Step] = [Paced(base_s, per_request_s, engine), Say((11,))]
        return [*(token * read_length(asked.raw)), Full()]

    engine.script = write


@dataclass(slots=True)
class Site:
    url: str
    folder: Path
    process: asyncio.subprocess.Process
    engines: tuple[FakeEngine, FakeEngine]

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    async def ask(
        self, method: str, path: str, key: str | None = KEY, **content: Any
    ) -> httpx.Response:  # Any: httpx's
        """Each over a connection of its own, so that either worker may get it."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            return await client.request(method, path, headers=headers, **content)

    async def begin(self, **options: Json) -> Json:
        response = await self.ask("POST", "/admin/calibrations", json=SMALL | options)
        assert response.status_code == 201, response.text
        return response.json()

    async def until(self, path: str, event: str) -> list[Json]:
        """Every event up to the first of a kind."""
        seen: list[Json] = []
        async with (
            httpx.AsyncClient(base_url=self.url, timeout=60) as client,
            client.stream("GET", path, headers={"authorization": f"Bearer {KEY}"}) as response,
        ):
            assert response.headers["content-type"].startswith("text/event-stream")
            name = ""
            async for line in response.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                if field == "data":
                    seen.append(json.loads(value))
                    assert seen[-1]["event"] == name
                    if name == event:
                        break
        return seen

    async def policy(self) -> Json:
        return (await self.ask("GET", "/admin/policy")).json()


@asynccontextmanager
async def serving(folder: Path, operator_key: str | None = KEY) -> AsyncIterator[Site]:
    """`triton` is twice as fast alone, `vllm` at eight in flight."""
    async with FakeTriton().serving() as triton, FakeVLLM().serving() as vllm:
        pace(triton, lambda raw: raw["request_output_len"][1][0], 0.02, 0.02)
        pace(vllm, lambda raw: raw["sampling_params"]["max_tokens"], 0.08, 0.0)
        model = {
            "id": "tiny",
            "tokenizer": str(TOKENIZER),
            "backends": {
                "triton": {"kind": "triton", "url": f"grpc://127.0.0.1:{triton.port}"},
                "vllm": {"kind": "vllm", "url": f"http://127.0.0.1:{vllm.port}"},
            },
            "policy": {"low": "triton", "high": "vllm", "up": 48, "down": 40},
        }
        config = folder / "crossover.yaml"
        settings = {"listen": "127.0.0.1:0", "operator_key": operator_key, "workers": 2, "models": [model]}
        await asyncio.to_thread(config.write_text, yaml.safe_dump(settings))
        process = await start(config)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(STARTS_WITHIN_S):
                line = (await process.stdout.readline()).decode()
            url = line.removeprefix("ready ").strip().removesuffix("/v1")
            yield Site(url, folder, process, (triton, vllm))
        finally:
            if process.returncode is None:
                process.terminate()
                await process.communicate()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serving(tmp_path) as site:
        yield site


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def count_users_requests(site: Site) -> tuple[float, float]:
    """Ended requests of users, and those of runs, by /metrics."""
    page = (await site.ask("GET", "/metrics")).text
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]

    def add(name: str) -> float:
        return sum(float(value) for labels, value in lines if labels.startswith(name + "{"))

    return add("crossover_requests_total"), add("crossover_run_requests_total")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_calibration_is_followed_to_its_end_and_its_threshold_is_in_force(site: Site) -> None:
    # Four levels, so that two pairs at each suffice to tell; with time for more where the machine is busy.
    begun = await site.begin(apply=True, policy="threshold", levels=[1, 2, 8, 16], budget_s=75)
    assert (begun["state"], begun["progress"], begun["options"]["max_foreign"]) == ("running", None, 0)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert (await site.ask("POST", "/v1/chat/completions", json=body)).status_code == 200
    events = await site.until(begun["events_url"], "end")
    cells = [event for event in events if event["event"] == "cell"]
    assert (events[0]["event"], events[0]["levels"], events[-1]["event"]) == ("begin", [1, 2, 8, 16], "end")
    measured = {(cell["backend"], cell["level"]) for cell in cells}
    assert {(backend, level) for backend in ("triton", "vllm") for level in (1, 2, 8, 16)} <= measured
    assert cells[-1]["pairs_done"] >= cells[-1]["pairs"] == 8
    assert events[-1]["verdict"] == "crossing", events[-1]

    over = (await site.ask("GET", begun["url"])).json()
    policy = await site.policy()
    assert (over["state"], over["progress"]["pairs"]) == ("complete", 8)
    assert (over["threshold"]["up"], over["threshold"]["down"]) == (policy["up"], policy["down"]) != (48, 40)
    assert over["applied"]["version"] == policy["version"] == 2
    assert Path(over["run_folder"]).name == policy["calibration"]
    assert [entry["id"] for entry in (await site.ask("GET", "/admin/calibrations")).json()["calibrations"]] == [
        begun["id"]
    ]
    users, runs = await count_users_requests(site)
    assert users == 1
    assert runs > 40


@pytest.mark.timeout(120)
async def test_a_second_one_is_refused_until_the_first_is_cancelled_by_whichever_worker(site: Site) -> None:
    begun = await site.begin(apply=True)
    await site.until(begun["events_url"], "measuring")
    for _ in range(4):
        refused = await site.ask("POST", "/admin/calibrations", json=SMALL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "calibration_running")
    assert (await site.ask("DELETE", begun["url"])).status_code == 202
    assert (await site.ask("DELETE", begun["url"])).status_code == 202
    end = (await site.until(begun["events_url"], "end"))[-1]
    assert (end["status"], end["exit_code"]) == ("interrupted", 130)
    over = (await site.ask("GET", begun["url"])).json()
    assert (over["state"], over["threshold"], over["applied"]) == ("interrupted", None, None)
    assert {"run.json", "result.json"} <= await asyncio.to_thread(list_names, Path(over["run_folder"]))
    assert ((await site.policy())["up"], (await site.policy())["version"]) == (48, 1)
    again = await site.begin()
    await site.ask("DELETE", again["url"])
    assert (await site.until(again["events_url"], "end"))[-1]["status"] == "interrupted"


@pytest.mark.timeout(120)
async def test_the_gateway_takes_its_calibration_along_when_it_ends(site: Site) -> None:
    begun = await site.begin()
    await site.until(begun["events_url"], "measuring")
    order = json.loads((site.runs / begun["id"] / "order.json").read_bytes())
    site.process.send_signal(signal.SIGTERM)
    await site.process.communicate()
    assert site.process.returncode == 0
    await eventually(lambda: not is_running(order["pid"]), 20)
    lines = (site.runs / begun["id"] / "progress.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["status"] == "interrupted"


@pytest.mark.timeout(120)
async def test_no_measurement_begins_while_users_are_served_beyond_the_bound(site: Site) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 400}
    async with asyncio.TaskGroup() as tasks:
        user = tasks.create_task(site.ask("POST", "/v1/chat/completions", json=body))
        await eventually(lambda: any(engine.running for engine in site.engines), 20)
        begun = await site.begin(max_foreign=0)
        seen = await site.until(begun["events_url"], "note")
        assert [event["event"] for event in seen] == ["begin", "note"]
        assert "1 requests of others are in flight" in seen[-1]["text"]
        user.cancel()
    seen = await site.until(begun["events_url"], "measuring")
    assert seen[-1]["level"] == 1
    await site.ask("DELETE", begun["url"])
    await site.until(begun["events_url"], "end")


async def test_a_calibration_calls_the_gateway_with_the_key_of_who_started_it(tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "state").create("root", (Scope.OPERATOR,), None)
    async with serving(tmp_path, operator_key=None) as site:
        begun = (await site.ask("POST", "/admin/calibrations", key, json=SMALL)).json()
        assert begun["by"] == "key root from 127.0.0.1"
        progress = site.runs / begun["id"] / "progress.jsonl"
        await eventually(lambda: b'"measuring"' in progress.read_bytes(), within_s=30)
        await site.ask("DELETE", begun["url"], key)
        assert all(key not in path.read_text() for path in site.runs.rglob("*.*") if path.is_file())


async def test_who_is_no_operator_and_what_makes_no_sense_is_refused(site: Site) -> None:
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/x"), ("DELETE", "/x"), ("GET", "/x/events")):
        for key in (None, "another-key"):
            response = await site.ask(method, f"/admin/calibrations{path}", key)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert (await site.ask("GET", "/admin/calibrations")).json() == {"calibrations": []}
    for path in ("/x", "/20260101T000000Z-abcd", "/..%2Fcrossover.yaml"):
        response = await site.ask("GET", f"/admin/calibrations{path}")
        assert response.status_code == 404
    wrong: list[tuple[Json, int, str]] = [
        ({"speed": 1}, 400, "speed: unknown field"),
        ({"levels": [4, 4]}, 400, "levels are distinct"),
        ({"levels": [4], "max_in_flight": 2}, 400, "above max_in_flight"),
        ({"max_foreign": -1}, 400, "max_foreign"),
        ({"model": "other"}, 404, "other"),
    ]
    for body, status, words in wrong:
        response = await site.ask("POST", "/admin/calibrations", json=body)
        assert (response.status_code, words in response.text) == (status, True), response.text
    assert not site.runs.exists()


@pytest.mark.timeout(120)
async def test_what_could_not_start_or_was_killed_is_told_and_does_not_stand_in_the_way(site: Site) -> None:
    site.runs.write_text("no folder")
    response = await site.ask("POST", "/admin/calibrations", json=SMALL)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "calibration_unavailable")
    site.runs.unlink()
    killed = await site.begin()
    os.kill(json.loads((site.runs / killed["id"] / "order.json").read_bytes())["pid"], signal.SIGKILL)
    end = (await site.until(killed["events_url"], "end"))[-1]
    assert (end["status"], end["failure"]) == ("failed", "its process ended without a word")
    assert (await site.ask("GET", killed["url"])).json()["state"] == "failed"
    begun = await site.begin()
    assert begun["state"] == "running"
    listed = (await site.ask("GET", "/admin/calibrations")).json()["calibrations"]
    assert sorted(entry["state"] for entry in listed) == ["failed", "running"]
    await site.ask("DELETE", begun["url"])
    assert (await site.until(begun["events_url"], "end"))[-1]["status"] == "interrupted"
