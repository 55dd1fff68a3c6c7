"""An engine dies under load, or freezes, and comes back."""

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any, Self

import pytest

from deploy.processes import Process
from tests.system.site import Site, StreamedAnswer, becomes, kill

TOKENS = {"embedded": 32, "cpu": 900}  # real engines are not paced
PROMPTS = ("Tell me a story.", "What is the capital of France?", "Count to ten.", "Hello", "Who are you?")
GREEDY: dict[str, Any] = {"temperature": 0}  # Any: by name
RANDOM: dict[str, Any] = {"temperature": 1}
SEEDED: dict[str, Any] = {"temperature": 1, "seed": 7}
MIX = (GREEDY, GREEDY, GREEDY, RANDOM, SEEDED)


def find_process(site: Site, name: str) -> Process:
    return next(process for process in site.stack.stack.engines if process.name == name)


@dataclass(slots=True)
class Flood:
    """Sixty streams and sixty whole answers under way at the victim."""

    site: Site
    undisturbed: dict[str, str]
    asked: list[tuple[dict[str, Any], str]]
    streams: list[StreamedAnswer] = field(default_factory=list)
    plain: list[asyncio.Task[dict[str, Any]]] = field(default_factory=list)

    @classmethod
    async def prepare(cls, site: Site, victim: str, survivor: str) -> Self:
        asked = [(MIX[n % len(MIX)], PROMPTS[n % 7 % len(PROMPTS)]) for n in range(60)]
        flood = cls(site, {}, asked)
        for prompt in PROMPTS:
            flood.undisturbed[prompt] = (await site.ask(flood.tokens, prompt=prompt, **GREEDY)).text
        await site.set_policy(low=victim, high=survivor, up=1000, down=999, dwell_s=0.0)
        return flood

    @property
    def tokens(self) -> int:
        return TOKENS[self.site.stack.stack.name]

    async def begin(self, group: asyncio.TaskGroup) -> None:
        for how, prompt in self.asked:
            self.plain.append(group.create_task(self.site.ask_whole(self.tokens, prompt=prompt, **how)))
            self.streams.append(StreamedAnswer())
            group.create_task(self.site.ask(self.tokens, self.streams[-1], prompt=prompt, **how))
        for stream in self.streams:
            await stream.began.wait()
        await becomes(self.site.in_flight, 120, within_s=20)

    def check(self, victim: str, *, lost: bool) -> None:
        """`lost`: the begun streams that may not move have ended with an error."""
        for stream, (how, prompt) in zip(self.streams, self.asked, strict=True):
            assert (stream.status, stream.backend) == (200, victim)
            if how is SEEDED and lost:
                assert stream.error is not None, "a cut stream ends with an error event"
                assert (stream.error["code"], stream.is_done) == ("backend_lost", False)
                continue
            assert stream.is_whole, stream
            assert stream.completion_tokens == self.tokens
            assert how is not GREEDY or stream.text == self.undisturbed[prompt]
        for answer, (how, prompt) in zip((task.result() for task in self.plain), self.asked, strict=True):
            assert answer["usage"]["completion_tokens"] == self.tokens
            assert how is not GREEDY or answer["choices"][0]["message"]["content"] == self.undisturbed[prompt]


async def ask_survivor(site: Site, survivor: str) -> None:
    answers = await asyncio.gather(*(site.ask(2) for _ in range(30)))
    assert all(answer.is_whole and answer.backend == survivor for answer in answers)


async def comes_back(site: Site, victim: str) -> None:
    async def backend_of_a_request() -> str | None:
        answer = await site.ask(1)
        assert answer.is_whole
        return answer.backend

    await becomes(backend_of_a_request, victim, within_s=site.stack.stack.startup_s)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "survivor"), [("triton", "vllm"), ("vllm", "triton")])
async def test_an_engine_killed_under_120_requests(own: Site, victim: str, survivor: str) -> None:
    """All are whole but the begun streams that must not move, and it comes back."""
    flood = await Flood.prepare(own, victim, survivor)
    async with asyncio.TaskGroup() as group:
        await flood.begin(group)
        kill(own.stack, victim)
    flood.check(victim, lost=True)
    assert await own.in_flight() == 0
    await ask_survivor(own, survivor)
    own.stack.supervisor.start(find_process(own, victim))
    await comes_back(own, victim)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("victim", "survivor"), [("triton", "vllm"), ("vllm", "triton")])
async def test_an_engine_frozen_under_120_requests(own: Site, victim: str, survivor: str) -> None:
    """All are whole: the begun streams that must not move wait for it to wake up, and the others for nothing."""
    flood = await Flood.prepare(own, victim, survivor)
    async with asyncio.TaskGroup() as group:
        await flood.begin(group)
        kill(own.stack, victim, signal.SIGSTOP)
        await becomes(own.in_flight, sum(how is SEEDED for how, _ in flood.asked), within_s=100)
        await ask_survivor(own, survivor)
        kill(own.stack, victim, signal.SIGCONT)
    flood.check(victim, lost=False)
    assert await own.in_flight() == 0
    await comes_back(own, victim)


@pytest.mark.timeout(400)
async def test_both_engines_killed_one_after_the_other(own: Site) -> None:
    """Begun greedy streams are whole when the first engine is back: until then they wait."""
    tokens = TOKENS[own.stack.stack.name]
    undisturbed = {prompt: (await own.ask(tokens, prompt=prompt, **GREEDY)).text for prompt in PROMPTS}
    await own.set_policy(low="triton", high="vllm", up=1000, down=999, dwell_s=0.0)
    streams, moves = [StreamedAnswer() for _ in PROMPTS * 2], await own.count_moves()
    async with asyncio.TaskGroup() as group:
        for stream, prompt in zip(streams, PROMPTS * 2, strict=True):
            group.create_task(own.ask(tokens, stream, prompt=prompt, **GREEDY))
        for stream in streams:
            await stream.began.wait()
        seen = [len(stream.times) for stream in streams]
        kill(own.stack, "triton")
        for stream, before in zip(streams, seen, strict=True):
            while len(stream.times) <= before + 1:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)
        kill(own.stack, "vllm")
        own.stack.supervisor.start(find_process(own, "triton"))
    for stream, prompt in zip(streams, PROMPTS * 2, strict=True):
        assert stream.is_whole, stream
        assert (stream.completion_tokens, stream.text) == (tokens, undisturbed[prompt])
    assert await own.count_moves() - moves > len(streams)  # some have moved twice
    assert await own.in_flight() == 0
