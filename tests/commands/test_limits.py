"""Limits of keys over the workers of a real gateway: exact, given back by the dead, kept over restarts."""

import asyncio
import csv
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest

from gateway.access.access import KEEP_S
from gateway.access.keyring import LOOK_S
from tests.commands.test_keys import run_keys, secret_of, time_until
from tests.commands.test_workers import Site, opened, until, workers_of
from tests.fakes.script import EndToken, Say
from tests.serving.stack import HELLO, MODEL, RawAnswer, RawClient

Json: TypeAlias = Any  # whatever the gateway answered
BACK_WITHIN_S = 3.0
CONNECTIONS = 40  # by which one key sends at once, over both workers


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own processes


def ask(client: RawClient, key: str, **fields: object) -> None:
    body = orjson.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 20, **fields})
    client.send("POST", "/v1/chat/completions", body, authorization=f"Bearer {key}")


async def send(client: RawClient, key: str, **fields: object) -> RawAnswer:
    ask(client, key, **fields)
    return await client.answer()


async def send_all(clients: Sequence[RawClient], key: str, count: int, **fields: object) -> list[RawAnswer]:
    """So many by each of the clients, at the same time."""

    async def several(client: RawClient) -> list[RawAnswer]:
        return [await send(client, key, **fields) for _ in range(count)]

    return [answer for answers in await asyncio.gather(*map(several, clients)) for answer in answers]


@asynccontextmanager
async def answering(folder: Path, workers: int = 2) -> AsyncIterator[tuple[Site, Path]]:
    """A gateway whose engines answer three tokens at once."""
    async with opened(folder, workers) as site:
        site.gateway.triton.script = site.gateway.vllm.script = lambda _: [Say((11, 12)), EndToken()]
        yield site, folder / "crossover.yaml"


async def limit_alice(site: Site, config: Path, *options: str) -> tuple[list[RawClient], str]:
    """Connections to each worker, which all go by the key's limits, and the key."""
    clients = await site.connect_to_each()
    key = secret_of(config, "create", "alice", *options)
    for client in clients:
        await time_until(client, None, 401)
    return clients, key


async def test_requests_a_minute_are_exact_over_two_workers_and_a_restart(tmp_path: Path) -> None:
    async with answering(tmp_path) as (site, config):
        _, key = await limit_alice(site, config, "--requests-per-minute", "30")
        clients = [await site.connect() for _ in range(CONNECTIONS)]
        began = time.monotonic()
        answers = await send_all(clients, key, 3)
        answered = [answer for answer in answers if answer.status == 200]
        assert 30 <= len(answered) <= 30 + drained(began)
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.headers["retry-after"] in {"1", "2"}
        operator = Operator(site, config)
        generation = (await operator.read("/admin/state"))["generation"]
        os.kill(site.gateway.process.pid, signal.SIGHUP)

        async def has_restarted() -> bool:
            return bool((await operator.read("/admin/state"))["generation"] != generation)

        await until(has_restarted)
        assert len(answered) - drained(began) - 1 <= (await operator.read_use())["requests_per_minute"] <= 30


def drained(began: float) -> float:
    """How many of thirty requests a minute count no more since then."""
    return (time.monotonic() - began) / 2


@dataclass
class Operator:
    """Reads what operators may, each time over a new connection, and so from the newest workers."""

    site: Site
    config: Path
    secret: str | None = None

    async def read(self, path: str) -> Json:
        client = await self.site.connect()
        if self.secret is None:
            self.secret = secret_of(self.config, "create", "root", "--scope", "operator")
            await asyncio.sleep(2 * LOOK_S)
        client.send("GET", path, authorization=f"Bearer {self.secret}")
        answer = await client.answer()
        assert answer.status == 200, answer.body
        return orjson.loads(answer.body)

    async def read_use(self) -> Json:
        (alice,) = (key for key in await self.read("/admin/keys") if key["name"] == "alice")
        assert "sha256" not in alice
        return alice["use"]


async def has_use(operator: Operator, **use: int) -> bool:
    return bool(use.items() <= (await operator.read_use()).items())


async def test_tokens_a_minute_are_exact_but_for_those_under_way(tmp_path: Path) -> None:
    async with answering(tmp_path) as (site, config):
        _, key = await limit_alice(site, config, "--tokens-per-minute", "1000")
        clients = [await site.connect() for _ in range(CONNECTIONS)]
        began = time.monotonic()
        answers = await send_all(clients, key, 10)
        usages = [json.loads(answer.body)["usage"] for answer in answers if answer.status == 200]
        under_way = CONNECTIONS * (usages[0]["prompt_tokens"] + 20)
        tokens = sum(usage["total_tokens"] for usage in usages)
        assert 1000 - under_way <= tokens <= 1000 + 1000 / 30 * drained(began)
        assert {answer.status for answer in answers} == {200, 429}


async def test_a_killed_workers_answers_count_for_the_days_limit_and_usage_lacks_a_second_of_them(
    tmp_path: Path,
) -> None:
    async with answering(tmp_path) as (site, config):
        (victim, _), key = await limit_alice(site, config, "--tokens-per-day", "100000")
        operator = Operator(site, config)
        first = (await operator.read("/admin/state"))["workers"][0]["pid"]
        reported = written = 0
        for wait_s in (1.2 * KEEP_S, 0.1 * KEEP_S):  # it is written, and then counted but hardly written
            written, answers = reported, await send_all([victim], key, 5)
            reported += sum(json.loads(answer.body)["usage"]["total_tokens"] for answer in answers)
            await asyncio.sleep(wait_s)
        os.kill(first, signal.SIGKILL)
        await until(partial(has_use, operator, tokens_per_day=reported), BACK_WITHIN_S)
        (row,) = list(csv.reader(run_keys(config, "usage").stdout.splitlines()))[1:]
        assert written <= sum(map(int, row[3:])) <= reported


async def test_in_flight_is_exact_and_a_killed_workers_places_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        config = tmp_path / "crossover.yaml"
        workers = [worker["pid"] for worker in await workers_of(site)]
        clients, key = await limit_alice(site, config, "--in-flight", "4")
        for client in clients:
            ask(client, key, n=2, stream=True)
            site.sent += 2
        await site.all_arrived()
        other = await site.connect()
        assert (await send(other, key)).status == 429
        os.kill(workers[0], signal.SIGKILL)
        operator = Operator(site, config)
        await until(partial(has_use, operator, in_flight=2), BACK_WITHIN_S)
        assert (await operator.read_use())["tokens_per_day"] > 40  # reserved for the other's
        clients[1].leave()
        await until(partial(has_use, operator, in_flight=0), BACK_WITHIN_S)
        assert (await operator.read_use())["tokens_per_day"] == 9 + 2  # the prompt, and a token of either choice


async def test_a_days_tokens_last_over_a_stop_and_usage_adds_up(tmp_path: Path) -> None:
    reported, key, config = [0, 0, 0], "", tmp_path / "crossover.yaml"
    for most in (5, 100):
        async with answering(tmp_path) as (site, _):
            client = await site.connect()
            if not key:
                key = secret_of(config, "create", "alice", "--tokens-per-day", "300")
                await time_until(client, None, 401)
            for _ in range(most):
                body = json.loads((await send(client, key)).body)
                if "error" in body:
                    assert body["error"]["code"] == "insufficient_quota"
                    break
                usage = body["usage"]
                reported = [
                    reported[0] + 1,
                    reported[1] + usage["prompt_tokens"],
                    reported[2] + usage["completion_tokens"],
                ]
            await site.close()
            site.gateway.process.terminate()
            assert (await site.gateway.end())[0] == 0
    assert 250 < reported[1] + reported[2] <= 300
    header, *rows = csv.reader(run_keys(config, "usage").stdout.splitlines())
    assert header == ["day", "key", "requests", "prompt_tokens", "completion_tokens"]
    assert rows == [[datetime.now(UTC).date().isoformat(), "alice", *map(str, reported)]]
    assert run_keys(config, "usage", "--to", "2020-01-01").stdout.count("\n") == 1
