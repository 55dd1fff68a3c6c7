"""One client that asks for many choices of one token, again and again: the side of the policy does not follow it."""

import asyncio

from openai import AsyncOpenAI

from gateway.language import ModelLanguage
from gateway.routing import PolicyChange
from gateway.routing.policies import Threshold
from tests.fakes.backend import Pause
from tests.serving.stack import HELLO, MODEL, Writer, connect, make_stack, running

POLICY = Threshold(low="low", high="high", up=48, down=40, dwell_s=0.05)


async def ask(client: AsyncOpenAI, choices: int) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, n=choices)
    assert len(answer.choices) == choices


async def test_short_requests_with_many_choices_do_not_change_the_side(language: ModelLanguage, writer: Writer) -> None:
    stack = make_stack(language, max_in_flight=1000)
    async with running(stack), stack.app.endpoints.mover.running(), connect(stack) as client:
        stack.low.script = stack.high.script = [Pause(0.03), *writer.script("Paris")]
        stack.app.router.set_policy(PolicyChange(POLICY, by="test"))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(ask(client, 128))
                for _ in range(5):
                    tasks.create_task(ask(client, 1))
                    await asyncio.sleep(0.02)
        assert stack.app.router.model_state(MODEL).switches <= 1
