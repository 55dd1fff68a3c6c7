"""Running answers that are made to change engines again and again, over two workers, while they are counted."""

import asyncio
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from deploy.cpu import cpu
from deploy.embedded import Pace, embedded
from deploy.launch import LOGS, Launched, launched
from deploy.ports import find_free
from deploy.processes import Process
from deploy.stacks import gateway
from tests.system.site import Site, StreamedAnswer, becomes

STREAMS, PLAIN, CHANGES = 200, 50, 20
MOVED = 24
ROUNDS = {"embedded": 5, "cpu": 9}  # real engines share two cores with all else: one round scatters by a factor of 3
LEFT_S = 1.0  # after the change all that move have begun to
TOKENS = {"embedded": 24, "cpu": 400}  # of an answer, so that most last for all changes
FEW = {"embedded": 48, "cpu": 500}  # of an answer that moves once
PROMPTS = ("Tell me a story.", "What is the capital of France?", "Count to ten.", "Hello", "Who are you?")
GREEDY: dict[str, Any] = {"temperature": 0}  # Any: by name
RANDOM: dict[str, Any] = {"temperature": 1}
SEEDED: dict[str, Any] = {"temperature": 1, "seed": 7}
MIX = (*[GREEDY] * 7, RANDOM, RANDOM, SEEDED)


@pytest.fixture(scope="module", params=["embedded", pytest.param("cpu", marks=[pytest.mark.stack, pytest.mark.slow])])
def two_workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The slow embedded pair, or a real Triton and vLLM, behind a gateway of two workers; its other gateway rests."""
    (port, own), folder = find_free(2), tmp_path_factory.mktemp("moving")
    pair = cpu(folder / LOGS) if request.param == "cpu" else embedded(Pace(40.0, 32))
    with launched(pair, own, folder, lambda *_: None) as stack:
        (folder / "two").mkdir()  # a gateway has its state folder for itself
        configuration = folder / "two" / "crossover.yaml"
        configuration.write_text(stack.stack.configuration(port))
        one = gateway(configuration, port)
        two = Process("two", (*one.command, "--workers", "2"), one.is_ready, one.environment)
        stack.supervisor.start(two)
        stack.supervisor.wait_until_ready(60, lambda *_: None)
        yield Launched(stack.stack, f"http://127.0.0.1:{port}", folder, stack.supervisor)


@pytest.fixture
def site(two_workers: Launched, session: aiohttp.ClientSession) -> Site:
    return Site(two_workers, session)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_twenty_changes_under_two_hundred_and_fifty_answers(site: Site) -> None:
    tokens, moves = TOKENS[site.stack.stack.name], await site.count_moves()
    undisturbed = {prompt: (await site.ask(tokens, prompt=prompt, **GREEDY)).text for prompt in PROMPTS}
    asked = [(MIX[n % len(MIX)], PROMPTS[n % 7 % len(PROMPTS)]) for n in range(STREAMS)]
    streams = [StreamedAnswer() for _ in asked]
    # The real pair's Triton takes both cores with a few answers, and ends them before the last request has begun.
    await site.drain("triton", is_draining=True)
    ended: set[asyncio.Task[Any]] = set()
    async with asyncio.TaskGroup() as group:
        plain = [group.create_task(site.ask_whole(tokens, prompt=prompt, **how)) for how, prompt in asked[:PLAIN]]
        tasks = [
            group.create_task(site.ask(tokens, stream, prompt=prompt, **how))
            for stream, (how, prompt) in zip(streams, asked, strict=True)
        ]
        for task in (*plain, *tasks):
            task.add_done_callback(ended.add)
        await becomes(site.in_flight, STREAMS + PLAIN, within_s=20)
        counts = []
        for change in range(CHANGES):
            leave, stay = ("triton", "vllm") if change % 2 else ("vllm", "triton")
            await site.drain(stay, is_draining=False)
            await site.drain(leave, is_draining=True)
            for _ in range(10):
                most, seen = STREAMS + PLAIN - len(ended), await site.in_flight()
                await asyncio.sleep(0.1)  # within which a client learns of an end that the gateway has counted
                counts.append((STREAMS + PLAIN - len(ended), seen, most))
        for backend in ("triton", "vllm"):
            await site.drain(backend, is_draining=False)

    assert [count for count in counts if not count[0] <= count[1] <= count[2]] == []
    assert len([count for count in counts if count[0] == count[2]]) > len(counts) / 2  # so most of them were exact
    for stream, (how, prompt) in zip(streams, asked, strict=True):
        assert stream.is_whole, stream
        assert stream.completion_tokens == tokens
        assert how is not GREEDY or stream.text == undisturbed[prompt]
    for answer, (how, prompt) in zip((task.result() for task in plain), asked, strict=False):
        assert answer["usage"]["completion_tokens"] == tokens
        assert how is not GREEDY or answer["choices"][0]["message"]["content"] == undisturbed[prompt]
    assert await site.in_flight() == 0
    assert await site.count_moves() - moves > STREAMS


@pytest.mark.alone
@pytest.mark.timeout(400)
async def test_a_move_pauses_an_answer_about_as_long_as_a_fresh_prompt_of_its_length_takes(site: Site) -> None:
    """In turns 24 answers move at once, and 24 are given up while as many prompts of the first ones' lengths come.

    So the load is the same: each comes to an engine together with 23 others, while the other engine is being left.
    """
    name = site.stack.stack.name
    ratios: list[float] = []
    while len(ratios) < ROUNDS[name]:
        moved = await _move(site, FEW[name])
        if moved is not None and (ttfts := await _ask_again(site, FEW[name], moved[1])):
            ratios.append(statistics.median(moved[0]) / statistics.median(ttfts))
    assert statistics.median(ratios) <= 1.5, ratios


async def _move(site: Site, tokens: int) -> tuple[list[float], list[str]] | None:
    """Returns the pause of each answer in seconds, and its text until then; None if one ended before it could move.

    A pause lasts from the last token, or from the change if that is later: a starved Triton is silent for seconds.
    """
    moves = await site.count_moves()
    async with asyncio.TaskGroup() as group:
        streams, _ = await _begin_at_triton(site, group, tokens)
        changed_at = asyncio.get_running_loop().time()
        await site.drain("triton", is_draining=True)
        texts, has_ended = [stream.text for stream in streams], any(stream.is_done for stream in streams)
    await site.drain("triton", is_draining=False)
    assert all(stream.is_whole and stream.completion_tokens == tokens for stream in streams)
    if has_ended or await site.count_moves() - moves < MOVED:
        return None
    pauses = [
        max(b - max(a, changed_at) for a, b in itertools.pairwise(stream.times) if b > changed_at > a - LEFT_S)
        for stream in streams
    ]
    return pauses, texts


async def _ask_again(site: Site, tokens: int, texts: list[str]) -> list[float]:
    """Returns the times to first tokens in seconds, none if an answer at Triton ended before it was given up."""
    fresh = [StreamedAnswer() for _ in texts]
    async with asyncio.TaskGroup() as group:
        streams, tasks = await _begin_at_triton(site, group, tokens)
        await site.drain("triton", is_draining=True)
        has_ended = any(stream.is_done for stream in streams)
        for task in tasks:
            task.cancel()
        for text, answer in zip(texts, fresh, strict=True):
            group.create_task(site.ask(2, answer, prompt=f"Tell me a story. {text}", **GREEDY))
    await site.drain("triton", is_draining=False)
    assert all(answer.is_whole for answer in fresh)
    return [] if has_ended else [answer.times[1] - answer.times[0] for answer in fresh]


async def _begin_at_triton(
    site: Site, group: asyncio.TaskGroup, tokens: int
) -> tuple[list[StreamedAnswer], list[asyncio.Task[StreamedAnswer]]]:
    """Returns when each has begun there. vLLM may be used again then."""
    await site.drain("vllm", is_draining=True)
    streams = [StreamedAnswer() for _ in range(MOVED)]
    tasks = [group.create_task(site.ask(tokens, stream, **GREEDY)) for stream in streams]
    await becomes(lambda: _have(streams, 2), True, within_s=30)
    await site.drain("vllm", is_draining=False)
    return streams, tasks


async def _have(streams: list[StreamedAnswer], pieces: int) -> bool:
    """Returns whether each has so many pieces of its text, or all of it: a starved Triton sends much at once."""
    return all(len(stream.times) > pieces or stream.is_done for stream in streams)
