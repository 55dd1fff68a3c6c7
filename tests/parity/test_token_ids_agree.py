"""The same prompts to a real Triton and a real vLLM with the same weights give the same token ids."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import numpy as np
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
from gateway.core import FinishReason, GenerateRequest, SamplingParams, TokenBackend
from gateway.language import ModelLanguage
from gateway.settings import TritonSettings, VLLMSettings
from tests.fakes.sink import RecordingSink
from tests.reference_world import conversations
from tests.serving.stack import eventually

NEAR_TIE = 1e-3  # logits closer than this may swap between two correct float32 implementations
PROMPTS = 60
PARAMS = {
    "greedy": SamplingParams(max_tokens=64, temperature=0.0),
    # Past its end token the model has learnt nothing, so these answers wander: the hardest case for parity.
    "ignore_eos": SamplingParams(max_tokens=64, min_tokens=64, temperature=0.0, ignore_eos=True),
    "penalties": SamplingParams(max_tokens=64, temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5),
    "min_tokens": SamplingParams(max_tokens=48, min_tokens=24, temperature=0.0),
}


@pytest.fixture(scope="module")
def language() -> ModelLanguage:
    return ModelLanguage.load(WEIGHTS)


@pytest.fixture(scope="module")
def questions() -> list[list[dict[str, object]]]:
    """Conversations of the model's world without their last answer."""
    return [list(one.messages[:-1]) for one in conversations(seed=2026, count=PROMPTS)]


async def generate(backend: TokenBackend, request: GenerateRequest) -> tuple[Sequence[int], FinishReason]:
    sink = RecordingSink()
    sink.call = backend.start(request, sink)
    await eventually(lambda: sink.end is not None, within_s=60)
    assert isinstance(sink.end, FinishReason), sink.end
    return sink.token_ids, sink.end


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
async def test_greedy_token_ids_are_the_same_through_both_engines(
    cpu_stack: Launched, language: ModelLanguage, questions: list[list[dict[str, object]]], params: SamplingParams
) -> None:
    requests = [
        GenerateRequest(f"parity-{number}", MODEL, language.render_chat(question), params, language.eos_token_ids)
        for number, question in enumerate(questions)
    ]
    urls = {name: str(backend["url"]) for name, backend in cpu_stack.stack.backends.items()}
    async with (
        aclosing(TritonBackend(TritonSettings("triton", urls["triton"]))) as triton,
        aclosing(VLLMBackend(VLLMSettings("vllm", urls["vllm"]))) as vllm,
    ):
        assert await triton.is_ready()
        assert await vllm.is_ready()
        ours, theirs = [await asyncio.gather(*(generate(engine, one) for one in requests)) for engine in (triton, vllm)]
    model, excluded = Model(load_checkpoint(WEIGHTS)), 0
    for request, left, right in zip(requests, ours, theirs, strict=True):
        if left == right:
            continue
        agreed = first_difference(left[0], right[0])
        assert is_near_tie(model, request, left[0][:agreed]), f"{left} is not {right} after {agreed} tokens"
        excluded += len(left[0]) - agreed
    assert excluded < 0.005 * sum(len(ids) for ids, _ in ours)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def is_near_tie(model: Model, request: GenerateRequest, agreed: Sequence[int]) -> bool:
    """Whether the two best tokens after `agreed` are closer than float32 implementations must agree."""
    logits = model.forward([Chunk(0, 0, (*request.prompt.token_ids, *agreed))], KVCache(model.config, 1))[0]
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
