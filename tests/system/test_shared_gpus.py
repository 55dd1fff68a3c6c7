"""The paced embedded pair on the same GPUs: while both engines work, each slows the other down."""

import asyncio
import time

import aiohttp
import pytest

from deploy.embedded import ROLES, Pace, embedded
from deploy.launch import launched
from deploy.ports import find_free
from tests.system.site import Site

PACE = Pace(20.0, 32)
TOKENS, EACH = 32, 4


async def measure(site: Site, *pins: str) -> dict[str, float]:
    """Seconds of an answer at each engine, of EACH that are asked at once."""

    async def ask(pin: str) -> float:
        begun = time.monotonic()
        assert (await site.ask(TOKENS, pin=pin)).is_whole
        return time.monotonic() - begun

    async with asyncio.TaskGroup() as group:
        tasks = {pin: [group.create_task(ask(pin)) for _ in range(EACH)] for pin in pins}
    return {pin: sum(task.result() for task in of_pin) / EACH for pin, of_pin in tasks.items()}


@pytest.mark.alone
async def test_while_both_work_a_step_takes_the_sum_of_both(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("shared")
    stack = embedded(PACE, folder / "gpus")
    with launched(stack, find_free(1)[0], folder, lambda *_: None) as running:
        async with aiohttp.ClientSession() as session:
            site = Site(running, session)
            alone = {**await measure(site, "triton"), **await measure(site, "vllm")}
            both = await measure(site, "triton", "vllm")
    steps = {pin: PACE.pair.engines[role].step_ms(EACH, 0.0) for pin, role in ROLES.items()}
    # As fast as alone for what is left when the other has ended: its answers are at most a twelfth shorter.
    for pin, own in steps.items():
        slower = sum(steps.values()) / own
        assert both[pin] / alone[pin] == pytest.approx(slower, rel=0.12)
