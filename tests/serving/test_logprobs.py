"""What clients see beside text: log-probabilities, token ids, echoes, running counts; over a real socket."""

import time
from typing import Any

import httpx
import orjson
import pytest
from openai import AsyncOpenAI

from gateway.core import FinishReason, Need, TokenLogprob
from gateway.language import ModelLanguage
from gateway.openai.completions import CompletionRequest
from gateway.openai.translate import Envelope, translate
from tests.fakes.backend import Scores, Script
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


async def test_streamed_log_probabilities_are_those_of_the_whole_answer(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    stack.low.script = scored(writer, TEXT)
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True)
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, stream=True)
    choices = [choice async for chunk in stream for choice in chunk.choices]
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or []]
    assert whole.choices[0].logprobs is not None
    assert entries == whole.choices[0].logprobs.content
    assert "".join(choice.delta.content or "" for choice in choices) == TEXT


async def test_tokens_after_a_stop_string_are_not_told(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    ids = writer.ids("Paris. And")
    stack.low.script = [Scores([TokenLogprob(token_id, -1.0) for token_id in ids]), ids, FinishReason.STOP]
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, logprobs=True, stop=".", extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].message.content == "Paris"
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    told = answer.choices[0].logprobs.content or []
    assert len(told) == answer.usage.completion_tokens == len(answer.choices[0].token_ids)  # type: ignore[attr-defined]  # vLLM's
    assert len(told) < len(ids)


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_token_ids_of_prompt_and_answer(stack: Stack, writer: Writer, stream: bool) -> None:
    stack.low.script = writer.says(TEXT)
    body = {"messages": HELLO, "return_token_ids": True, "stream": stream}
    answers = await fetch(stack, "/chat/completions", body)
    ids = [token_id for answer in answers for choice in answer["choices"] for token_id in choice.get("token_ids", [])]
    assert ids == [*writer.ids(TEXT), writer.eos]
    assert answers[0]["prompt_token_ids"] == list(stack.requests[0].prompt.token_ids)


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_token_ids_of_a_completion_come_with_those_of_its_own_prompt(
    stack: Stack, writer: Writer, stream: bool
) -> None:
    stack.low.script = writer.says("!")
    prompts = [[8, 9], [5, 6, 7]]
    answers = await fetch(stack, "/completions", {"prompt": prompts, "return_token_ids": True, "stream": stream})
    choices = [choice for answer in answers for choice in answer["choices"]]
    told = [(choice["index"], choice["prompt_token_ids"]) for choice in choices if "prompt_token_ids" in choice]
    assert sorted(told) == list(enumerate(prompts))


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
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    values = [value for part in told for value in part["token_logprobs"]]
    assert values[: len(prompt)] == [None, *[-1.0] * (len(prompt) - 1)]
    assert values[len(prompt)] == 0.0
    offsets = [offset for part in told for offset in part["text_offset"]]
    assert offsets == sorted(offsets)
    assert offsets[len(prompt)] == len("Once upon")
    assert {Need.LOGPROBS, Need.PROMPT_LOGPROBS} == set(stack.requests[0].needs)
    assert stack.requests[0].params.prompt_logprobs == 0
    assert not any("prompt_token_ids" in part for part in (*answers, *choices))


async def test_every_choice_echoes_its_own_prompt(stack: Stack, writer: Writer) -> None:
    stack.low.script = stack.high.script = writer.says("!")
    (answer,) = await fetch(
        stack, "/completions", {"prompt": ["One", "Two", "Six"], "n": 2, "echo": True, "stream": False}
    )
    assert [choice["text"] for choice in answer["choices"]] == ["One!", "One!", "Two!", "Two!", "Six!", "Six!"]


def test_an_echo_shows_special_tokens_as_well(language: ModelLanguage) -> None:
    body = CompletionRequest.model_validate({"model": MODEL, "prompt": "<|im_start|>user\nHi", "echo": True})
    assert translate(body, language, Envelope("id", 0)).echoes == (body.prompt,)


@pytest.mark.parametrize(
    ("path", "asked", "need", "field"),
    [
        ("/chat/completions", {"messages": HELLO, "logprobs": True}, Need.LOGPROBS, "logprobs"),
        ("/completions", {"prompt": "Once", "logprobs": 0, "echo": True}, Need.PROMPT_LOGPROBS, "echo"),
    ],
)
async def test_what_not_every_engine_tells_is_asked_of_one_that_does_or_refused_by_name(
    stack: Stack, writer: Writer, path: str, *, asked: dict[str, object], need: Need, field: str
) -> None:
    stack.high.script = writer.says("Paris")
    async with httpx.AsyncClient(base_url=f"{stack.url}/v1") as client:
        stack.low.capabilities -= {need}
        answer = await client.post(path, json={"model": MODEL, **asked})
        assert (answer.status_code, answer.headers["x-crossover-backend"]) == (200, "high")
        stack.high.capabilities -= {need}
        refusal = await client.post(path, json={"model": MODEL, **asked})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, field)
    assert (len(stack.low.calls), len(stack.high.calls)) == (0, 1)


def test_an_echo_costs_its_choices_nothing(language: ModelLanguage) -> None:
    """They are made on the event loop, up to 128 of them."""

    def seconds(*, echo: bool) -> float:
        document = {"model": MODEL, "prompt": [*range(100, 1000)], "n": 128, "echo": echo}
        ask = translate(CompletionRequest.model_validate(document), language, Envelope("id", 0))
        group, start = ask.group(), time.process_time()
        for index in range(128):
            ask.choice(index, group)
        return time.process_time() - start

    with_echo, without = (min(seconds(echo=echo) for _ in range(3)) for echo in (True, False))
    assert with_echo < 5 * without


async def test_every_chunk_counts_what_was_used_so_far(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says(TEXT)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, "stream": True, "stream_options": options}
    counts = [chunk["usage"]["completion_tokens"] for chunk in await fetch(stack, "/chat/completions", body)]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == len(writer.ids(TEXT)) + 1


async def fetch(stack: Stack, path: str, body: dict[str, object]) -> list[dict[str, Any]]:  # Any: JSON
    """The JSON objects of an answer, streamed or not."""
    async with httpx.AsyncClient() as client:
        raw = (await client.post(f"{stack.url}/v1{path}", json={"model": MODEL, **body})).content
    if not body["stream"]:
        return [orjson.loads(raw)]
    events = [block.removeprefix(b"data: ") for block in raw.split(b"\n\n") if block]
    assert events.pop() == b"[DONE]"
    return [orjson.loads(event) for event in events]
