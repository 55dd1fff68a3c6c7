"""A stack whose engines recite at the pace of a measured pair."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from deploy.embedded import Pace, embedded
from deploy.launch import Launched, launched
from deploy.ports import find_free
from tests.system.site import Site, StreamedAnswer

TOKENS = 200


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("recited")
    pair = embedded(Pace(2.0, 32, "tp-dp"), folder / "gpus")
    with launched(pair, find_free(1)[0], folder, lambda *_: None) as running:
        yield running


@pytest.fixture
async def site(stack: Launched) -> AsyncIterator[Site]:
    async with aiohttp.ClientSession() as session:
        yield Site(stack, session)


async def test_an_answer_that_moves_has_the_text_of_one_that_stays(site: Site) -> None:
    stays = [await site.ask(TOKENS, pin=pin) for pin in ("triton", "vllm")]
    moves, before = StreamedAnswer(), await site.count_moves()
    async with asyncio.TaskGroup() as group:
        group.create_task(site.ask(TOKENS, moves))
        await moves.began.wait()
        await site.drain("triton", is_draining=True)
    await site.drain("triton", is_draining=False)
    assert moves.backend == "triton"
    assert await site.count_moves() - before == 1
    assert moves.is_whole
    assert moves.completion_tokens == TOKENS
    assert [answer.text for answer in stays] == [moves.text] * 2


async def test_prompts_far_beyond_the_small_models_context_are_answered_by_both(site: Site) -> None:
    for pin in ("triton", "vllm"):
        answer = await site.ask(3, prompt="story " * 2500, pin=pin)
        assert (answer.is_whole, answer.completion_tokens) == (True, 3)
    refused = await site.ask(3, prompt="story " * 5000)
    assert refused.status == 400
