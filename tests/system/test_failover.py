"""An engine dies under load, or freezes, and comes back."""

import asyncio
import signal
from typing import Any

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize(("victim", "survivor"), [("triton", "vllm"), ("vllm", "triton")])
async def test_an_engine_lost_under_120_requests(own: Site, victim: str, survivor: str, blow: signal.Signals) -> None:
    """Sixty streams, sixty whole answers: all are whole but the begun streams that must not move, and it comes back."""
    tokens = TOKENS[own.stack.stack.name]
    undisturbed = {prompt: (await own.ask(tokens, prompt=prompt, **GREEDY)).text for prompt in PROMPTS}
    await own.set_policy(low=victim, high=survivor, up=1000, down=999, dwell_s=0.0)
    asked = [(MIX[n % len(MIX)], PROMPTS[n % 7 % len(PROMPTS)]) for n in range(60)]
    streams = [StreamedAnswer() for _ in asked]
    async with asyncio.TaskGroup() as group:
        plain = [group.create_task(own.ask_whole(tokens, prompt=prompt, **how)) for how, prompt in asked]
        for stream, (how, prompt) in zip(streams, asked, strict=True):
            group.create_task(own.ask(tokens, stream, prompt=prompt, **how))
        for stream in streams:
            await stream.began.wait()
        await becomes(own.in_flight, 120, within_s=20)
        kill(own.stack, victim, blow)

    for stream, (how, prompt) in zip(streams, asked, strict=True):
        assert (stream.status, stream.backend) == (200, victim)
        if how is SEEDED:
            assert stream.error is not None, "a cut stream ends with an error event"
            assert (stream.error["code"], stream.is_done) == ("backend_lost", False)
        else:
            assert stream.is_whole, stream
            assert stream.completion_tokens == tokens
            assert how is RANDOM or stream.text == undisturbed[prompt]
    for answer, (how, prompt) in zip((task.result() for task in plain), asked, strict=True):
        assert answer["usage"]["completion_tokens"] == tokens
        assert how is not GREEDY or answer["choices"][0]["message"]["content"] == undisturbed[prompt]
    assert await own.in_flight() == 0
    await _serve_again(own, victim, survivor, blow)


async def _serve_again(own: Site, victim: str, survivor: str, blow: signal.Signals) -> None:
    after = await asyncio.gather(*(own.ask(2) for _ in range(30)))
    assert all(answer.is_whole and answer.backend == survivor for answer in after)

    if blow is signal.SIGSTOP:
        kill(own.stack, victim, signal.SIGCONT)
    else:
        own.stack.supervisor.start(find_process(own, victim))

    async def backend_of_a_request() -> str | None:
        answer = await own.ask(1)
        assert answer.is_whole
        return answer.backend

    await becomes(backend_of_a_request, victim, within_s=own.stack.stack.startup_s)
