"""The contract with engines that really generate: the reference engine behind both wires, a real Triton, a real vLLM.

What a script can only claim is seen here: that the wire's forms are understood, and that cancelling frees the engine.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

import orjson
import pytest

from deploy.stacks import WEIGHTS
from gateway.backends.http1_client import Client
from gateway.backends.triton import TritonBackend
from gateway.backends.vllm import VLLMBackend
from gateway.backends.vllm_json import COMPLETIONS
from gateway.core import FinishReason, GenerateRequest, Guide, GuideKind, Need, Prompt, SamplingParams
from gateway.errors import BackendUnavailable, ContextLengthExceeded, GatewayError, InvalidRequest
from gateway.language import ModelLanguage
from gateway.settings import TritonSettings, VLLMSettings
from tests.fakes.sink import RecordingSink
from tests.workers import ON_CPU_STACK

KINDS = ("triton", "vllm", "vllm by completions")
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
GAUGES = {
    "triton": ('nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active"',),
    "vllm": ("vllm:num_requests_running{", "vllm:num_requests_waiting{"),
}


pytestmark = pytest.mark.parametrize("anyio_backend", [True], ids=["uvloop"], indirect=True)


@pytest.fixture(scope="module")
def question() -> GenerateRequest:
    """A question that the model answers with a few tokens and an end token."""
    language = ModelLanguage.load(WEIGHTS)
    prompt = language.render_chat([{"role": "user", "content": "What is the capital of France?"}])
    return GenerateRequest("req", "m", prompt, GREEDY, language.eos_token_ids)


@dataclass
class Engine:
    """A backend, and the engine's own count of its running requests."""

    backend: TritonBackend | VLLMBackend
    metrics: Client
    gauges: tuple[str, ...]

    async def held(self) -> float:
        _, text = await self.metrics.fetch(self.metrics.render("GET", "/metrics"))
        lines = [line for line in text.decode().splitlines() if line.startswith(self.gauges)]
        assert lines, f"no metric of the form {self.gauges}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(20):
            while await self.held() != count:  # noqa: ASYNC110 - an engine's gauge raises no event
                await asyncio.sleep(0.02)

    def ask(self, request: GenerateRequest, **params: object) -> RecordingSink:
        sink = RecordingSink()
        changed = replace(request, params=replace(request.params, **params))  # type: ignore[arg-type]  # by name
        sink.call = self.backend.start(changed, sink)
        return sink

    async def answer(self, request: GenerateRequest, **params: object) -> tuple[FinishReason | GatewayError, list[int]]:
        sink = self.ask(request, **params)
        return await sink.ended(), sink.token_ids


@pytest.fixture(
    params=[
        *(pytest.param(("embedded", kind), id=f"embedded {kind}") for kind in KINDS),
        *(pytest.param(("cpu", kind), id=f"cpu {kind}", marks=ON_CPU_STACK) for kind in KINDS),
    ]
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    stack, kind = request.param
    urls = request.getfixturevalue(f"{stack}_stack").stack.backends
    engine = open_engine(kind, urls)
    assert await engine.backend.is_ready()
    if kind == "vllm by completions":
        assert isinstance(engine.backend, VLLMBackend)
        engine.backend.route = COMPLETIONS
    yield engine
    await engine.holds(0)
    await engine.backend.aclose()
    await engine.metrics.aclose()


def open_engine(kind: str, urls: Mapping[str, Mapping[str, object]]) -> Engine:
    name = kind.partition(" ")[0]
    url = str(urls[name]["url"])
    backend = (
        TritonBackend(TritonSettings(name, url), vocab_size=ModelLanguage.load(WEIGHTS).vocab_size)
        if name == "triton"
        else VLLMBackend(VLLMSettings(name, url))
    )
    metrics_url = str(urls[name].get("metrics_url", url))
    return Engine(backend, Client(metrics_url, peer="metrics", connect_timeout_s=5), GAUGES[name])


async def test_an_answer_ends_in_the_end_token_and_max_tokens_cut_it(engine: Engine, question: GenerateRequest) -> None:
    reason, whole = await engine.answer(question)
    assert (reason, whole[-1]) == (FinishReason.STOP, question.eos_token_ids[0])
    assert 3 < len(whole) < 64
    assert await engine.answer(question, max_tokens=3) == (FinishReason.LENGTH, whole[:3])
    assert await engine.answer(question, max_tokens=len(whole)) == (FinishReason.STOP, whole)


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_stop_id_ends_the_answer_and_is_its_last_id(engine: Engine, question: GenerateRequest, at: int) -> None:
    _, whole = await engine.answer(question)
    until_stop = whole[: whole.index(whole[at]) + 1]
    assert await engine.answer(question, stop_token_ids=(9, whole[at])) == (FinishReason.STOP, until_stop)


async def test_any_of_the_models_end_tokens_ends_an_answer(engine: Engine, question: GenerateRequest) -> None:
    principal, *others = question.eos_token_ids
    reason, token_ids = await engine.answer(replace(question, eos_token_ids=(*others, principal)))
    assert (reason, token_ids[-1]) == (FinishReason.STOP, principal)


async def test_ignoring_the_end_gives_exactly_so_many(engine: Engine, question: GenerateRequest) -> None:
    reason, token_ids = await engine.answer(question, ignore_eos=True, max_tokens=40, min_tokens=40)
    assert (reason, len(token_ids)) == (FinishReason.LENGTH, 40)


async def test_seeds_repeat_and_their_absence_does_not(engine: Engine, question: GenerateRequest) -> None:
    # In its own language the model's distribution is too narrow.
    nonsense = replace(question, prompt=Prompt(tuple(range(300, 340))))

    async def sampled(seed: int | None) -> list[int]:
        reason, token_ids = await engine.answer(nonsense, temperature=2.0, ignore_eos=True, max_tokens=60, seed=seed)
        assert reason is FinishReason.LENGTH
        return token_ids

    assert await sampled(7) == await sampled(7)
    assert await sampled(-7) == await sampled(-7)
    assert await sampled(7) != await sampled(8)
    assert await sampled(None) != await sampled(None)


async def test_a_prompt_beyond_the_context_has_an_error_of_its_own(engine: Engine, question: GenerateRequest) -> None:
    end, _ = await engine.answer(replace(question, prompt=Prompt((11,) * 1500)))
    assert type(end) is ContextLengthExceeded


async def test_cancelling_in_any_phase_frees_the_engine(engine: Engine, question: GenerateRequest) -> None:
    whole = replace(question, params=replace(GREEDY, max_tokens=900, ignore_eos=True))
    sinks = [engine.ask(whole) for _ in range(12)]
    for sink in sinks[:4]:  # before the request is sent
        sink.cancel()
    await asyncio.sleep(0.05)
    for sink in sinks[4:8]:  # queued, in the prompt's phase, or just begun
        sink.cancel()
    for sink in sinks[8:]:
        await sink.received(2)
        sink.cancel()
    await engine.holds(0)
    await asyncio.sleep(0.1)
    assert [sink.breaches for sink in sinks if sink.breaches] == []


# Needs that only some engines serve.


async def test_the_needs_that_each_engine_serves(engine: Engine) -> None:
    is_triton = isinstance(engine.backend, TritonBackend)
    by_tensors = {Need.LOGIT_BIAS, Need.PENALTIES, Need.MIN_TOKENS, Need.GUIDE}
    expected = by_tensors if is_triton else set(Need) - {Need.PRIORITY}
    assert engine.backend.capabilities == expected


def skip_without(engine: Engine, need: Need) -> None:
    if need not in engine.backend.capabilities:
        pytest.skip(f"{engine.backend.name} cannot")


async def test_a_bias_makes_a_token_and_bans_another(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.LOGIT_BIAS)
    _, (first, *_) = await engine.answer(question)
    reason, without = await engine.answer(question, logit_bias=((first, -100.0),), max_tokens=8, ignore_eos=True)
    assert (reason, first in without) == (FinishReason.LENGTH, False)
    only = await engine.answer(question, logit_bias=((300, 100.0), (299, -100.0)), max_tokens=5)
    assert only == (FinishReason.LENGTH, [300] * 5)


@pytest.mark.parametrize(
    ("guide", "answers"),
    [
        (Guide(GuideKind.JSON_SCHEMA, '{"enum": ["blue", "green"]}'), r'"(blue|green)"'),
        (Guide(GuideKind.REGEX, "[0-9]{3}-[ab]"), r"[0-9]{3}-[ab]"),
        (Guide(GuideKind.GRAMMAR, 'root ::= "<" ("x" | "yy") ">"'), r"<(x|yy)>"),
    ],
    ids=["json_schema", "regex", "grammar"],
)
async def test_an_answer_is_held_to_its_guide(
    engine: Engine, question: GenerateRequest, guide: Guide, answers: str
) -> None:
    skip_without(engine, Need.GUIDE)
    language = ModelLanguage.load(WEIGHTS)
    for temperature in (0.0, 1.0):
        reason, token_ids = await engine.answer(question, guide=guide, temperature=temperature)
        assert (reason, token_ids[-1] in question.eos_token_ids) == (FinishReason.STOP, True)
        assert re.fullmatch(answers, language.decode(token_ids))


async def test_any_json_object_is_one(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.GUIDE)
    end, token_ids = await engine.answer(question, guide=Guide(GuideKind.JSON), max_tokens=200)
    text = ModelLanguage.load(WEIGHTS).decode(token_ids)
    assert text.lstrip().startswith("{")
    if end is FinishReason.STOP:
        assert isinstance(orjson.loads(text), dict)


@pytest.mark.parametrize(
    "guide",
    [
        Guide(GuideKind.JSON_SCHEMA, '{"type": "no such type"}'),
        Guide(GuideKind.JSON_SCHEMA, "{"),
        Guide(GuideKind.REGEX, "["),
        Guide(GuideKind.GRAMMAR, "root ::= ("),
    ],
    ids=["no such type", "no json", "regex", "grammar"],
)
async def test_a_guide_that_is_none_is_the_requests_fault_and_harms_no_neighbour(
    engine: Engine, question: GenerateRequest, guide: Guide
) -> None:
    skip_without(engine, Need.GUIDE)
    neighbour = engine.ask(question)
    end, _ = await engine.answer(replace(question, needs={Need.GUIDE: "response_format"}), guide=guide)
    assert type(end) is InvalidRequest
    assert end.param == "response_format"
    assert await neighbour.ended() is FinishReason.STOP


async def test_log_probabilities_belong_to_their_tokens(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.LOGPROBS)
    _, plain = await engine.answer(question)
    for count in (0, 1, 5, 20):
        sink = engine.ask(question, logprobs=count)
        assert await sink.ended() is FinishReason.STOP
        assert sink.token_ids == [entry.token_id for entry in sink.entries] == plain
        for entry in sink.entries:
            assert entry.logprob is not None
            assert entry.logprob <= 0
            assert len(entry.top) == count
            assert [logprob for _, logprob in entry.top] == sorted((top[1] for top in entry.top), reverse=True)
            assert entry.top[:1] == ((entry.token_id, entry.logprob),)[:count]  # greedy


async def test_an_unlikely_token_is_not_among_the_most_probable(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.LOGPROBS)
    sink = engine.ask(question, logprobs=3, logit_bias=((300, 100.0),), max_tokens=4)
    assert await sink.ended() is FinishReason.LENGTH
    for entry in sink.entries:
        assert (entry.token_id, len(entry.top)) == (300, 3)  # from the model's own distribution, without the bias
        assert 300 not in dict(entry.top)


async def test_a_prompt_has_log_probabilities_but_for_its_first_token(
    engine: Engine, question: GenerateRequest
) -> None:
    skip_without(engine, Need.PROMPT_LOGPROBS)
    prompt = question.prompt.token_ids
    both = engine.ask(question, prompt_logprobs=2, logprobs=1)
    alone = engine.ask(question, prompt_logprobs=2)
    assert await both.ended() is await alone.ended() is FinishReason.STOP
    assert [entry.token_id for entry in both.entries] == [*prompt, *both.token_ids]
    assert [entry.token_id for entry in alone.entries] == list(prompt)
    assert (alone.entries[0].logprob, alone.entries[0].top) == (None, ())
    assert all(entry.logprob is not None and len(entry.top) == 2 for entry in alone.entries[1:])
    assert all(len(entry.top) == 1 for entry in both.entries[len(prompt) :])


async def test_a_min_p_of_one_leaves_the_most_probable_only(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.MIN_P)
    assert await engine.answer(question, temperature=2.0, min_p=1.0) == await engine.answer(question)


@pytest.mark.parametrize("stack", ["embedded", pytest.param("cpu", marks=ON_CPU_STACK)])
async def test_a_model_that_triton_does_not_have_is_unavailable(
    stack: str, request: pytest.FixtureRequest, question: GenerateRequest
) -> None:
    url = str(request.getfixturevalue(f"{stack}_stack").stack.backends["triton"]["url"])
    backend = TritonBackend(TritonSettings("triton", url, model="no_such_model"))
    assert not await backend.is_ready()
    sink = RecordingSink()
    sink.call = backend.start(question, sink)
    assert type(await sink.ended()) is BackendUnavailable
    await backend.aclose()
