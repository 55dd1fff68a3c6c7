"""The same request to a real Triton and a real vLLM with the same weights gives the same tokens, text and usage."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest

from deploy.launch import Launched
from deploy.stacks import MODEL, WEIGHTS
from engines.reference.cache import KVCache
from engines.reference.checkpoint import load_checkpoint
from engines.reference.model import Model
from engines.reference.plan import Chunk
from engines.reference.sampling import SampleState
from engines.reference.sampling import SamplingParams as ReferenceParams
from gateway.backends.triton import TritonBackend
from gateway.backends.vllm import VLLMBackend
from gateway.core import FinishReason, GenerateRequest, SamplingParams, TokenBackend, TokenLogprob
from gateway.errors import GatewayError
from gateway.language import ModelLanguage
from gateway.settings import TritonSettings, VLLMSettings
from tests.reference_world import Conversation, conversations
from tests.system.site import Site, becomes

NEAR_TIE = 1e-3  # logits closer than this may swap between two correct float32 implementations
PROMPTS = 60


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.ended: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()

    def tokens(self, token_ids: Sequence[int]) -> None:
        self.ids.extend(token_ids)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        raise AssertionError("nobody asked for log-probabilities")

    def finish(self, reason: FinishReason) -> None:
        self.ended.set_result(reason)

    def fail(self, error: GatewayError) -> None:
        self.ended.set_exception(error)


@dataclass(frozen=True)
class Generated:
    ids: tuple[int, ...]
    reason: FinishReason


@asynccontextmanager
async def both_backends(stack: Launched) -> AsyncIterator[tuple[TokenBackend, TokenBackend]]:
    urls = stack.stack.backends
    async with AsyncExitStack() as exits:
        triton = TritonBackend(TritonSettings(name="triton", url=str(urls["triton"]["url"])))
        vllm = VLLMBackend(VLLMSettings(name="vllm", url=str(urls["vllm"]["url"])))
        for backend in (triton, vllm):
            await exits.enter_async_context(aclosing(backend))
            assert await backend.is_ready()
        yield triton, vllm


async def generate(backend: TokenBackend, request: GenerateRequest) -> Generated:
    recorder = Recorder()
    call = backend.start(request, recorder)
    try:
        reason = await recorder.ended
    finally:
        call.cancel()
    return Generated(tuple(recorder.ids), reason)


@pytest.fixture(scope="module")
def language() -> ModelLanguage:
    return ModelLanguage.load(WEIGHTS)


@pytest.fixture(scope="module")
def questions() -> list[Conversation]:
    """Conversations of the model's world."""
    return list(conversations(seed=2026, count=PROMPTS))


def messages_of(question: Conversation) -> list[dict[str, object]]:
    return list(question.messages[:-1])


def make_request(language: ModelLanguage, question: Conversation, params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"parity-{id(question)}",
        model=MODEL,
        prompt=language.render_chat(messages_of(question)),
        params=params,
        eos_token_ids=language.eos_token_ids,
    )


GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
# Past its end token the model has learnt nothing, so these answers wander: the hardest case for parity.
GREEDY_64 = SamplingParams(max_tokens=64, min_tokens=64, temperature=0.0, ignore_eos=True)
GREEDY_PENALISED = SamplingParams(max_tokens=64, temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5)
GREEDY_LATE = SamplingParams(max_tokens=48, min_tokens=24, temperature=0.0)


@pytest.mark.parametrize(
    "params",
    [GREEDY, GREEDY_64, GREEDY_PENALISED, GREEDY_LATE],
    ids=["greedy", "ignore_eos", "penalties", "min_tokens"],
)
async def test_greedy_token_ids_are_the_same_through_both_engines(
    cpu_stack: Launched, language: ModelLanguage, questions: list[Conversation], params: SamplingParams
) -> None:
    requests = [make_request(language, question, params) for question in questions]
    async with both_backends(cpu_stack) as backends:
        ours, theirs = [
            await asyncio.gather(*(generate(backend, request) for request in requests)) for backend in backends
        ]
    model, excluded = Model(load_checkpoint(WEIGHTS)), 0
    for request, left, right in zip(requests, ours, theirs, strict=True):
        if left == right:
            continue
        agreed = first_difference(left.ids, right.ids)
        assert is_near_tie(model, request, left.ids[:agreed]), f"{left} is not {right} after {agreed} tokens"
        excluded += len(left.ids) - agreed
    assert excluded < 0.005 * sum(len(answer.ids) for answer in ours)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def is_near_tie(model: Model, request: GenerateRequest, agreed: Sequence[int]) -> bool:
    """Whether the two best tokens after `agreed` are closer than float32 implementations must agree."""
    ids = (*request.prompt.token_ids, *agreed)
    logits = model.forward([Chunk(0, 0, ids)], KVCache(model.config, 1))[0]
    params = ReferenceParams(
        max_tokens=request.params.max_tokens,
        min_tokens=request.params.min_tokens,
        repetition_penalty=request.params.repetition_penalty,
        presence_penalty=request.params.presence_penalty,
        end_ids=request.eos_token_ids,
        ignore_eos=request.params.ignore_eos,
    )
    state = SampleState(params, request.prompt.token_ids, len(logits))
    for token_id in agreed:
        state.record(token_id)
    state.constrain(logits)
    second, best = np.sort(logits)[-2:]
    return bool(best - second < NEAR_TIE)


@dataclass(frozen=True)
class Said:
    text: str
    finish_reason: str | None
    completion_tokens: int


async def say(client: openai.AsyncOpenAI, question: Conversation, pin: str, *, stream: bool) -> Said:
    options: dict[str, Any] = {  # Any: the client's overloads do not follow a bool
        "model": MODEL,
        "messages": messages_of(question),
        "temperature": 0,
        "max_tokens": 64,
        "extra_headers": {"x-crossover-pin": pin},
    }
    if not stream:
        answer = await client.chat.completions.create(**options)
        choice = answer.choices[0]
        return Said(choice.message.content, choice.finish_reason, answer.usage.completion_tokens)
    text, reason, tokens = "", None, 0
    async for chunk in await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return Said(text, reason, tokens)


def is_right(said: Said, expected: str) -> bool:
    """Whether the answer is the one learnt, or as much of it as max_tokens leave room for."""
    if said.finish_reason == "length":
        return said.text != "" and expected.startswith(said.text)
    return said.finish_reason == "stop" and said.text == expected


async def test_text_usage_and_finish_reason_are_the_same_through_both_engines_streamed_and_not(
    cpu_stack: Launched, questions: list[Conversation]
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{cpu_stack.url}/v1", api_key="-", max_retries=0) as client:
        for question in questions:
            answers = [
                await say(client, question, pin, stream=stream)
                for pin in ("triton", "vllm")
                for stream in (False, True)
            ]
            assert len(set(answers)) == 1, answers
            assert is_right(answers[0], str(question.messages[-1]["content"]))


async def test_a_threshold_set_by_hand_routes_between_the_real_engines(cpu_stack: Launched) -> None:
    over = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        site = Site(cpu_stack, session)

        async def keep_asking() -> None:
            while not over.is_set():
                await site.ask(100)

        async def is_crowded() -> bool:
            return await site.in_flight() > 12

        async with site.policy_put_back():
            await site.set_policy(up=8, down=4, dwell_s=0.0)
            few = await asyncio.gather(*(site.ask(4) for _ in range(3)))
            assert [told.backend for told in few] == ["triton"] * 3
            async with asyncio.TaskGroup() as crowd:
                for _ in range(20):
                    crowd.create_task(keep_asking())
                await becomes(is_crowded, True, within_s=30)
                probe = await site.ask(1)
                over.set()
            assert probe.backend == "vllm"
            assert "up=8 down=4" in probe.reason
            assert (await site.ask(1)).backend == "triton"
