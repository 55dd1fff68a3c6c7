"""One client that asks for 128 choices of one token again and again: the side of the policy does not follow it."""

import asyncio
from typing import Any

import aiohttp
import pytest

from deploy.embedded import Pace, embedded
from deploy.launch import launched
from deploy.ports import find_free
from deploy.stacks import MODEL
from tests.system.site import Site

PACE = Pace(10.0, 32, "tp-dp")
SECONDS, EVERY_S, TOKENS = 20, 1 / 6, 32
POLICIES: dict[str, dict[str, Any]] = {  # Any: by name
    "threshold": {"up": 48, "down": 40},
    "curve": {"node": PACE.describe_node(is_shared=True)},
}
ATTACK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "n": 128, "max_tokens": 1}


async def attack(site: Site) -> None:
    while True:
        async with site.session.post(f"{site.url}/v1/chat/completions", json=ATTACK) as response:
            assert response.status == 200
            await response.read()
        await asyncio.sleep(0.2)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", POLICIES)
async def test_many_short_choices_change_the_side_once_at_most(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("attack")
    with launched(embedded(PACE, folder / "gpus"), find_free(1)[0], folder, lambda *_: None) as running:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            site = Site(running, session)
            policy = {"kind": kind, "low": "triton", "high": "vllm", **POLICIES[kind]}
            async with session.put(f"{site.url}/admin/policy", json=policy) as response:
                assert response.status == 200, await response.text()
            before = (await site.state())["switches"]
            attacking = group.create_task(attack(site))
            others = []
            for _ in range(round(SECONDS / EVERY_S)):
                others.append(group.create_task(site.ask(TOKENS)))
                await asyncio.sleep(EVERY_S)
            assert (await site.state())["switches"] - before <= 1
            attacking.cancel()
            assert all([(await other).is_whole for other in others])
