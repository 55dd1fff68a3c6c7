"""Log-probabilities and echoes, over a real socket."""

from typing import Any

import httpx
import orjson
import pytest
from openai import AsyncOpenAI

from gateway.core import FinishReason, Need, TokenLogprob
from tests.fakes.backend import Scores, Script
from tests.openai.streams import Json, read_events
from tests.serving.stack import HELLO, MODEL, Stack, Writer

TEXT = "Grüße 🙂"


def scored(writer: Writer, text: str) -> Script:
    """One token a step, each with its log-probability and one alternative, then the end token."""
    ids = [*writer.ids(text), writer.eos]
    steps: list[Any] = []  # Any: steps are of several kinds
    for place, token_id in enumerate(ids):
        steps += [Scores([TokenLogprob(token_id, -0.25 * place, ((token_id, -0.25 * place),))]), [token_id]]
    return [*steps, FinishReason.STOP]


async def test_every_token_of_a_chat_has_its_log_probability(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = scored(writer, TEXT)
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    shown, end = logprobs.content[:-1], logprobs.content[-1]
    assert b"".join(bytes(entry.bytes or []) for entry in shown).decode() == TEXT
    assert [entry.logprob for entry in logprobs.content] == [-0.25 * place for place in range(len(logprobs.content))]
    assert all(entry.top_logprobs[0].bytes == entry.bytes for entry in logprobs.content)
    assert end.token == "<|im_end|>"  # it was generated and counts, as in vLLM
    (request,) = stack.requests
    assert (request.params.logprobs, dict(request.needs)) == (1, {Need.LOGPROBS: "logprobs"})
    stream = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, top_logprobs=1, stream=True
    )
    choices = [choice async for chunk in stream for choice in chunk.choices]
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or []]
    assert entries == logprobs.content


async def test_tokens_after_a_stop_string_are_left_out(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    ids = writer.ids("Paris. And")
    stack.low.script = [Scores([TokenLogprob(token_id, -1.0) for token_id in ids]), ids, FinishReason.STOP]
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, stop=".", extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].message.content == "Paris"
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    shown = answer.choices[0].logprobs.content or []
    assert len(shown) == answer.usage.completion_tokens == len(answer.choices[0].token_ids)  # type: ignore[attr-defined]  # vLLM's
    assert len(shown) < len(ids)


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_an_echo_begins_with_the_prompt_and_its_log_probabilities(
    stack: Stack, writer: Writer, stream: bool
) -> None:
    prompt = writer.ids("Once upon")
    of_prompt = [TokenLogprob(token_id, -1.0 if place else None) for place, token_id in enumerate(prompt)]
    stack.low.script = [Scores(of_prompt), *scored(writer, " a time")]
    body = {"prompt": "Once upon", "echo": True, "logprobs": 0, "stream": stream, "max_tokens": 20}
    answers = await fetch(stack, "/completions", body)
    choices = [choice for answer in answers for choice in answer["choices"]]
    assert "".join(choice["text"] for choice in choices) == "Once upon a time"
    scores = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    values = [value for part in scores for value in part["token_logprobs"]]
    assert values[: len(prompt)] == [None, *[-1.0] * (len(prompt) - 1)]
    assert values[len(prompt)] == 0.0
    offsets = [offset for part in scores for offset in part["text_offset"]]
    assert offsets == sorted(offsets)
    assert offsets[len(prompt)] == len("Once upon")
    assert {Need.LOGPROBS, Need.PROMPT_LOGPROBS} == set(stack.requests[0].needs)
    assert stack.requests[0].params.prompt_logprobs == 0
    assert not any("prompt_token_ids" in part for part in (*answers, *choices))
    for backend in (stack.low, stack.high):
        backend.capabilities -= {Need.PROMPT_LOGPROBS}
    async with httpx.AsyncClient(base_url=f"{stack.url}/v1") as client:
        refusal = await client.post("/completions", json={"model": MODEL, **body})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "echo")


async def test_every_choice_echoes_its_own_prompt(stack: Stack, writer: Writer) -> None:
    stack.low.script = stack.high.script = writer.script("!")
    (answer,) = await fetch(
        stack, "/completions", {"prompt": ["One", "Two", "Six"], "n": 2, "echo": True, "stream": False}
    )
    assert [choice["text"] for choice in answer["choices"]] == ["One!", "One!", "Two!", "Two!", "Six!", "Six!"]


async def fetch(stack: Stack, path: str, body: dict[str, object]) -> list[Json]:
    """The JSON objects of an answer, streamed or not."""
    async with httpx.AsyncClient() as client:
        raw = (await client.post(f"{stack.url}/v1{path}", json={"model": MODEL, **body})).content
    return read_events(raw) if body["stream"] else [orjson.loads(raw)]
