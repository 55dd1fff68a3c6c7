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
from gateway.errors import BackendUnavailable, ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.settings import TritonSettings, VLLMSettings
from tests.fakes.sink import RecordingSink, settled
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


async def test_an_answer_ends_in_the_end_token(engine: Engine, question: GenerateRequest) -> None:
    sink = engine.ask(question)
    assert await sink.ended() is FinishReason.STOP
    assert sink.token_ids[-1] == question.eos_token_ids[0]
    assert 1 < len(sink.token_ids) < 64


async def test_max_tokens_end_in_length_with_exactly_so_many(engine: Engine, question: GenerateRequest) -> None:
    whole = engine.ask(question)
    await whole.ended()
    short = engine.ask(question, max_tokens=3)
    assert await short.ended() is FinishReason.LENGTH
    assert short.token_ids == whole.token_ids[:3]


async def test_the_end_token_on_the_last_place_is_stop(engine: Engine, question: GenerateRequest) -> None:
    whole = engine.ask(question)
    await whole.ended()
    exact = engine.ask(question, max_tokens=len(whole.token_ids))
    assert await exact.ended() is FinishReason.STOP
    assert exact.token_ids == whole.token_ids


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_stop_id_ends_the_answer_and_is_its_last_id(engine: Engine, question: GenerateRequest, at: int) -> None:
    whole = engine.ask(question)
    await whole.ended()
    stop_id = whole.token_ids[at]
    stopped = engine.ask(question, stop_token_ids=(9, stop_id))
    assert await stopped.ended() is FinishReason.STOP
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(stop_id) + 1]


async def test_any_of_the_models_end_tokens_ends_an_answer(engine: Engine, question: GenerateRequest) -> None:
    principal, *others = question.eos_token_ids
    turned = replace(question, eos_token_ids=(*others, principal))
    sink = engine.ask(turned)
    assert await sink.ended() is FinishReason.STOP
    assert sink.token_ids[-1] == principal


async def test_ignoring_the_end_gives_exactly_so_many(engine: Engine, question: GenerateRequest) -> None:
    sink = engine.ask(question, ignore_eos=True, max_tokens=40, min_tokens=40)
    assert await sink.ended() is FinishReason.LENGTH
    assert len(sink.token_ids) == 40


async def test_seeds_repeat_and_their_absence_does_not(engine: Engine, question: GenerateRequest) -> None:
    nonsense = replace(
        question, prompt=Prompt(tuple(range(300, 340)))
    )  # in its own language the model's distribution is too narrow

    async def sampled(seed: int | None) -> list[int]:
        sink = engine.ask(nonsense, temperature=2.0, ignore_eos=True, max_tokens=60, seed=seed)
        assert await sink.ended() is FinishReason.LENGTH
        return sink.token_ids

    assert await sampled(7) == await sampled(7)
    assert await sampled(-7) == await sampled(-7)
    assert await sampled(7) != await sampled(8)
    assert await sampled(None) != await sampled(None)


async def test_a_prompt_beyond_the_context_has_an_error_of_its_own(engine: Engine, question: GenerateRequest) -> None:
    sink = engine.ask(replace(question, prompt=Prompt((11,) * 1500)))
    assert type(await sink.ended()) is ContextLengthExceeded


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


async def test_a_hundred_at_once_all_get_the_same_answer(engine: Engine, question: GenerateRequest) -> None:
    alone = engine.ask(question)
    await alone.ended()
    sinks = [engine.ask(question) for _ in range(100)]
    for sink in sinks:
        assert await sink.ended() is FinishReason.STOP
    assert {tuple(sink.token_ids) for sink in sinks} == {tuple(alone.token_ids)}
    assert [sink.breaches for sink in sinks if sink.breaches] == []
    await settled(lambda: len(engine.backend.calls) == 0, repr(engine.backend))


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
    whole = engine.ask(question)
    await whole.ended()
    first = whole.token_ids[0]
    without = engine.ask(question, logit_bias=((first, -100.0),), max_tokens=8, ignore_eos=True)
    assert await without.ended() is FinishReason.LENGTH
    assert first not in without.token_ids
    only = engine.ask(question, logit_bias=((300, 100.0), (299, -100.0)), max_tokens=5)
    assert await only.ended() is FinishReason.LENGTH
    assert only.token_ids == [300] * 5


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
        sink = engine.ask(question, guide=guide, temperature=temperature)
        assert await sink.ended() is FinishReason.STOP
        assert sink.token_ids[-1] in question.eos_token_ids
        assert re.fullmatch(answers, language.decode(sink.token_ids))


async def test_any_json_object_is_one(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.GUIDE)
    sink = engine.ask(question, guide=Guide(GuideKind.JSON), max_tokens=200)
    end = await sink.ended()
    text = ModelLanguage.load(WEIGHTS).decode(sink.token_ids)
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
    sink = engine.ask(replace(question, needs={Need.GUIDE: "response_format"}), guide=guide)
    end = await sink.ended()
    assert type(end) is InvalidRequest
    assert end.param == "response_format"
    assert await neighbour.ended() is FinishReason.STOP


async def test_log_probabilities_belong_to_their_tokens(engine: Engine, question: GenerateRequest) -> None:
    skip_without(engine, Need.LOGPROBS)
    plain = engine.ask(question)
    await plain.ended()
    for count in (0, 1, 5, 20):
        sink = engine.ask(question, logprobs=count)
        assert await sink.ended() is FinishReason.STOP
        assert sink.token_ids == [entry.token_id for entry in sink.entries] == plain.token_ids
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
    greedy = engine.ask(question)
    await greedy.ended()
    sink = engine.ask(question, temperature=2.0, min_p=1.0)
    assert await sink.ended() is FinishReason.STOP
    assert sink.token_ids == greedy.token_ids


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
