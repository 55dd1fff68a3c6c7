"""Messages through Anthropic's own clients, of a model that thinks: what it thought comes out, and goes back in."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from gateway.core import FinishReason
from tests.clients.node_client import NodeClient, node
from tests.clients.question import MESSAGES, Place, Question
from tests.language.small_models import Model
from tests.openai.small_chats import build_open
from tests.serving.stack import MODEL, Stack, make_stack, running

THINKING: dict[str, Any] = {  # Any: the clients' overloads follow no mapping
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "chat_template_kwargs": {"enable_thinking": True},  # this template's switch
}
FRANCE, CHILE = ({"role": "user", "content": text} for text in ("France?", "Chile?"))
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return build_open(tmp_path)


@pytest.fixture
async def thinker(model: Model) -> AsyncIterator[Stack]:
    async with running(make_stack(model.language)) as stack:
        tokens = [[token_id] for token_id in model.encode("Hm, é</think>Paris.")]
        stack.low.script = [*tokens, [model.language.eos_token_ids[0]], FinishReason.STOP]
        yield stack


@STREAMED
async def test_thoughts_come_out_and_go_back_without_loss(thinker: Stack, model: Model, *, stream: bool) -> None:
    asked: dict[str, Any] = {  # Any: as above
        "model": MODEL, "max_tokens": 2048, "messages": [FRANCE],
        "thinking": THINKING["thinking"], "extra_body": THINKING,
    }  # fmt: skip
    async with AsyncAnthropic(base_url=thinker.url, api_key="-", max_retries=0) as client:
        answer: Any
        if stream:
            async with client.messages.stream(**asked) as events:
                names = [event.type async for event in events]
                answer = await events.get_final_message()
            assert {"thinking", "signature", "text"} < set(names)
        else:
            answer = await client.messages.create(**asked)
        thought, said = answer.content
        assert (thought.type, said.type, answer.stop_reason) == ("thinking", "text", "end_turn")
        assert (thought.thinking, said.text) == ("Hm, é", "Paris.")
        asked["messages"] += [{"role": "assistant", "content": answer.content}, CHILE]
        await client.messages.create(**asked)
        shown = model.language.decode(thinker.low.calls[-1].request.prompt.token_ids, shows_special=True)
        assert "<think>Hm, é</think>Paris.<|im_end|>" in shown


@STREAMED
async def test_the_client_for_node_reads_thoughts(thinker: Stack, *, stream: bool) -> None:
    question = Question([FRANCE], stream, model=MODEL, max_tokens=2048, temperature=1.0, extra=THINKING)
    with node("anthropic-node") as program:
        client = NodeClient(program, Place(thinker.url, "low"), MESSAGES)
        answer = await asyncio.to_thread(client.ask, question)
    assert (answer.thoughts, answer.text, answer.finish_reasons) == (("Hm, é",), "Paris.", ("stop",))
