"""Limits of keys over the workers of a real gateway: exact, given back by the dead, kept over restarts."""

import asyncio
import csv
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pytest

from tests.commands.test_keys import run_keys, secret_of, time_until
from tests.commands.test_workers import Site, opened, state
from tests.fakes.script import EndToken, Say
from tests.serving.stack import HELLO, MODEL, RawAnswer, RawClient

Json: TypeAlias = Any  # whatever the gateway answered
BACK_WITHIN_S = 3.0


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


async def test_requests_a_minute_are_exact_over_two_workers_and_a_restart(tmp_path: Path) -> None:
    async with answering(tmp_path) as (site, config):
        clients = await site.connect_to_each()
        key = secret_of(config, "create", "alice", "--requests-per-minute", "30")
        for client in clients:
            await time_until(client, key, 200)
        answers = await send_all(clients, key, 25)
        answered = [answer for answer in answers if answer.status == 200]
        assert len(answered) in {30, 31, 32}  # two seconds are one more
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.headers["retry-after"] in {"1", "2"}
        generation = (await state_as(site, config, clients[0]))["generation"]
        os.kill(site.gateway.process.pid, signal.SIGHUP)
        async with asyncio.timeout(60):
            while (await state_as(site, config, await site.connect()))["generation"] == generation:
                await asyncio.sleep(0.2)
        run_keys(config, "limit", "alice", "--requests-per-minute", "31")  # less than one in two seconds drains
        shown = await shown_use(site, config)
        assert shown["requests_per_minute"] > 5


async def state_as(site: Site, config: Path, client: RawClient) -> Json:
    return await read_as(config, client, "/admin/state")


async def read_as(config: Path, client: RawClient, path: str) -> Json:
    secret = config.parent / "operator"
    if not secret.exists():
        secret.write_text(secret_of(config, "create", "root", "--scope", "operator"))
        await time_until(client, secret.read_text(), 200)
    client.send("GET", path, authorization=f"Bearer {secret.read_text()}")
    answer = await client.answer()
    assert answer.status == 200, answer.body
    return orjson.loads(answer.body)


async def shown_use(site: Site, config: Path) -> Json:
    keys = await read_as(config, await site.connect(), "/admin/keys")
    (shown,) = (key for key in keys if key["name"] == "alice")
    assert not {"sha256", "secret"} & set(shown)
    return shown["use"]


async def test_tokens_a_minute_are_exact_but_for_those_under_way(tmp_path: Path) -> None:
    async with answering(tmp_path) as (site, config):
        clients = await site.connect_to_each()
        key = secret_of(config, "create", "alice", "--tokens-per-minute", "1000")
        for client in clients:
            await time_until(client, key, 200)
        answers = await send_all(clients, key, 100)
        tokens = sum(json.loads(answer.body)["usage"]["total_tokens"] for answer in answers if answer.status == 200)
        reserved = int(answers[0].headers["x-ratelimit-remaining-tokens"])
        assert 1000 - 2 * (1000 - reserved) < tokens < 1000 + 17 * 10  # ten seconds at most drain it
        assert {answer.status for answer in answers} == {200, 429}


async def test_in_flight_is_exact_and_a_killed_workers_places_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as site:
        config = tmp_path / "crossover.yaml"
        clients = await site.connect_to_each()
        workers = [worker["pid"] for worker in (await state(clients[0]))["workers"]]
        key = secret_of(config, "create", "alice", "--in-flight", "4")
        for client in clients:
            await time_until(client, key, 200)
        for client in clients:
            ask(client, key, n=2, stream=True)
            site.sent += 2
        await site.all_arrived()
        other = await site.connect()
        assert (await send(other, key)).status == 429
        os.kill(workers[0], signal.SIGKILL)
        async with asyncio.timeout(BACK_WITHIN_S):
            while (use := await shown_use(site, config))["in_flight"] != 2:
                await asyncio.sleep(0.05)
        assert use["tokens_per_day"] > 0  # the other's
        clients[1].leave()
        async with asyncio.timeout(BACK_WITHIN_S):
            while await shown_use(site, config) != {**use, "in_flight": 0, "tokens_per_minute": 0, "tokens_per_day": 0}:
                await asyncio.sleep(0.05)


async def test_a_days_tokens_last_over_a_stop_and_usage_adds_up(tmp_path: Path) -> None:
    told = [0, 0, 0]
    for is_first in (True, False):
        async with answering(tmp_path) as (site, config):
            if is_first:
                key = secret_of(config, "create", "alice", "--tokens-per-day", "300")
                client = await site.connect()
                await time_until(client, key, 200)
            client = await site.connect()
            while (answer := await send(client, key)).status == 200:
                usage = json.loads(answer.body)["usage"]
                told = [told[0] + 1, told[1] + usage["prompt_tokens"], told[2] + usage["completion_tokens"]]
                if is_first and told[0] == 5:
                    break
            site.gateway.process.terminate()
            assert (await site.gateway.end())[0] == 0
    assert 200 < told[1] + told[2] <= 300
    assert json.loads(answer.body)["error"]["code"] == "insufficient_quota"
    header, *rows = csv.reader(run_keys(config, "usage").stdout.splitlines())
    assert header == ["day", "key", "requests", "prompt_tokens", "completion_tokens"]
    assert rows == [[datetime.now(UTC).date().isoformat(), "alice", *map(str, told)]]
    assert run_keys(config, "usage", "--to", "2020-01-01").stdout.count("\n") == 1
