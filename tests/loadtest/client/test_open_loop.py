"""The open loop against a gateway whose pace is known: who waits for an answer is sent after its end."""

import pytest

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.errors import Untrusted
from loadtest.client.open_loop import Due, OpenLoop
from loadtest.client.prompts import Lead
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.target import Target
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)


async def serve(gateway: FakeGateway, *requests: Due, seed: int = 7) -> tuple[float, tuple[StreamedAnswer, ...]]:
    sender = Sender(Target.parse(gateway.url), "toy", "", seed, 10)
    return await OpenLoop(sender, AnswerGate(), "vllm").run(requests)


async def test_a_turn_is_sent_its_wait_after_the_answer_before_and_counts_from_then() -> None:
    turns = (Due(0.0, 10), Due(0.01, 3), Due(0.02, 4, after=0, wait_s=0.15), Due(0.03, 2, after=2))
    async with FakeGateway(STEADY, STEADY) as gateway:
        began_at, answers = await serve(gateway, *turns)
    first, other, second, third = answers
    assert [answer.completion_tokens for answer in answers] == [10, 3, 4, 2]
    assert first.finished_at
    assert second.finished_at
    assert second.due_at == first.finished_at + 0.15
    assert third.due_at == second.finished_at
    assert first.finished_at + 0.15 <= second.started_at < second.finished_at <= third.started_at
    assert other.due_at == began_at + 0.01
    assert other.started_at < first.finished_at
    assert second.e2e_s is not None
    assert second.e2e_s < 0.15


async def test_what_prompts_share_is_equal_within_a_run_and_differs_between_runs() -> None:
    requests = [Due(0.0, 2, 60, lead=Lead((1, 2 + number), 20.0)) for number in range(3)]
    async with FakeGateway(STEADY, STEADY) as gateway:
        for seed in (1, 2):
            await serve(gateway, *requests, seed=seed)
        prompts = [prompt.split() for prompt in gateway.prompts["vllm"]]
    one, next_one = prompts[:3], prompts[3:]
    assert len({tuple(prompt[:20]) for prompt in one}) == 1 == len({tuple(prompt[:20]) for prompt in next_one})
    assert len({tuple(prompt[20:40]) for prompt in one}) == 3
    assert one[0][:4] != next_one[0][:4]
    assert {len(prompt) for prompt in prompts} == {60 + 9}


async def test_who_waits_for_a_failed_answer_is_not_sent() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(error_answer=1)) as gateway:
        with pytest.raises(Untrusted, match="the engine is on fire"):
            await serve(gateway, Due(0.0, 2), Due(0.1, 3, after=0))
        assert [body["max_tokens"] for body in gateway.bodies] == [2]
