"""The first thing a user tries: the official client, plain and streamed, through either engine."""

import openai
import pytest

from deploy.stacks import MODEL

FRANCE = "What is the capital of France?"


@pytest.mark.parametrize("pin", ["triton", "vllm"])
async def test_plain_answer_names_paris_through_either_engine(client: openai.AsyncOpenAI, pin: str) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": FRANCE}],
        temperature=0,
        extra_headers={"x-crossover-pin": pin},
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("pin", ["triton", "vllm"])
async def test_streamed_answer_equals_the_plain_one(client: openai.AsyncOpenAI, pin: str) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello in Japanese."}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-crossover-pin": pin},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "こんにちは"
    assert chunks[-1].usage is not None
    assert not chunks[-1].choices


async def test_usage_is_the_same_through_either_engine(client: openai.AsyncOpenAI) -> None:
    usages = []
    for pin in ("triton", "vllm"):
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": FRANCE}],
            temperature=0,
            extra_headers={"x-crossover-pin": pin},
        )
        usages.append(answer.usage)
    assert usages[0] == usages[1]


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
