"""Messages through Anthropic's own client, of a model that thinks: what it thought comes out, and goes back in."""

from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from gateway.core import FinishReason
from tests.openai.small_chats import build_open
from tests.serving.stack import MODEL, make_stack, running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_thoughts_come_out_and_go_back_without_loss(tmp_path: Path, *, stream: bool) -> None:
    model = build_open(tmp_path)
    async with (
        running(make_stack(model.language)) as stack,
        AsyncAnthropic(base_url=stack.url, api_key="-", max_retries=0) as client,
    ):
        tokens = [[token_id] for token_id in model.encode("Hm, é</think>Paris.")]
        stack.low.script = [*tokens, [model.language.eos_token_ids[0]], FinishReason.STOP]
        asked: dict[str, Any] = {  # Any: the client's overloads follow no mapping
            "model": MODEL,
            "max_tokens": 2048,
            "messages": [{"role": "user", "content": "France?"}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},  # this template's switch
        }
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
        asked["messages"] += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Chile?"}]
        await client.messages.create(**asked)
        shown = model.language.decode(stack.low.calls[-1].request.prompt.token_ids, shows_special=True)
        assert "<think>Hm, é</think>Paris.<|im_end|>" in shown
