"""What the order and the pace of a few answers show, by scripted backends."""

from collections.abc import Sequence

import pytest

from deploy.stacks import WEIGHTS
from gateway.core import FinishReason, GenerateRequest, Prompt
from gateway.doctor import Fault
from gateway.doctor.behaviour import observe
from gateway.doctor.generation import LONG_TOKENS, PAIRS, SHORT_TOKENS, Examiner, overtakes, remembers
from gateway.doctor.statements import Statement, Topic
from gateway.doctor.subjects import Subject
from gateway.engine_kinds.openai_server import OpenAIReader
from gateway.errors import BackendError
from gateway.evidence import Engine, Http, Place
from gateway.language import ModelLanguage
from gateway.settings import ModelSettings, VLLMSettings
from tests.fakes.backend import Pause, Script, ScriptedBackend, ScriptedCall, Step


def one_by_one(request: GenerateRequest) -> Script:
    """A token in each turn of the event loop."""
    return [*([7] for _ in range(request.params.max_tokens)), FinishReason.LENGTH]


class InTurns(ScriptedBackend):
    """Begins with a request when the one before it has ended."""

    def start(self, request: GenerateRequest, sink: object) -> ScriptedCall:
        ahead = [call for call in self.calls if not call.is_over]
        turns = sum(len(call.steps) + 5 for call in ahead)  # a few more, for it to be over
        self.script = [*([Pause(0.0)] * turns), *one_by_one(request)]
        return super().start(request, sink)  # type: ignore[arg-type]  # a Sink


def examiner(backend: ScriptedBackend, context_length: int = 2048) -> Examiner:
    return Examiner(backend, Prompt((1, 2, 3)), (0,), context_length, vocab_size=512)


async def test_a_short_request_overtakes_a_long_one_where_both_are_batched() -> None:
    backend = ScriptedBackend("vllm", one_by_one)
    assert await overtakes(examiner(backend))
    assert [call.request.params.max_tokens for call in backend.calls] == [LONG_TOKENS[0], SHORT_TOKENS]
    assert not backend.live  # the long one is not run to its end


async def test_an_engine_that_was_merely_fast_is_asked_again_with_more() -> None:
    backend = InTurns("triton")
    assert not await overtakes(examiner(backend))
    asked = [call.request.params.max_tokens for call in backend.calls]
    assert asked == [LONG_TOKENS[0], SHORT_TOKENS, LONG_TOKENS[1], SHORT_TOKENS]


async def test_the_long_request_fits_the_context() -> None:
    backend = ScriptedBackend("vllm", one_by_one)
    assert await overtakes(examiner(backend, context_length=64))
    assert backend.calls[0].request.params.max_tokens == 60


async def test_every_generation_decodes_exactly_what_it_asked_for() -> None:
    backend = ScriptedBackend("vllm", one_by_one)
    await overtakes(examiner(backend))
    for call in backend.calls:
        params = call.request.params
        assert (params.ignore_eos, params.min_tokens, params.temperature) == (True, params.max_tokens, 0.0)


def remembering(pause_s: float, again_s: float) -> ScriptedBackend:
    """Reads a prompt in `pause_s`, one that it has seen in `again_s`."""
    seen: set[Prompt] = set()

    def play(request: GenerateRequest) -> Sequence[Step]:
        pause = Pause(again_s if request.prompt in seen else pause_s)
        seen.add(request.prompt)
        return [pause, [7], FinishReason.LENGTH]

    return ScriptedBackend("vllm", play)


@pytest.mark.parametrize(("again_s", "verdict"), [(0.001, True), (0.4, False)])
async def test_a_prompt_cache_shows_in_the_second_answer(again_s: float, verdict: bool) -> None:
    backend = remembering(0.4, again_s)
    assert await remembers(examiner(backend)) is verdict
    prompts = [call.request.prompt for call in backend.calls]
    assert len(set(prompts)) == PAIRS
    assert prompts[::2] == prompts[1::2]
    assert {len(prompt) for prompt in prompts} == {1024}


@pytest.fixture(scope="module")
def subject() -> Subject:
    settings = VLLMSettings("vllm", "http://127.0.0.1:9")
    engine = Engine(OpenAIReader(Http(), settings.url, None), (Place("m", "vllm"),))
    model = ModelSettings("m", WEIGHTS, {"vllm": settings})
    return Subject(engine, settings, (model,), ModelLanguage.load(WEIGHTS))


CACHED = {Topic.PREFIX_CACHING: Statement(Topic.PREFIX_CACHING, True, "a table")}  # need not be looked for


async def test_an_engine_that_holds_others_requests_is_not_called_slow(subject: Subject) -> None:
    assert (await observe(subject, InTurns("vllm"), CACHED, in_flight=3)).statements == ()
    (statement,) = (await observe(subject, InTurns("vllm"), CACHED, in_flight=0)).statements
    assert (statement.topic, statement.value) == (Topic.IN_FLIGHT_BATCHING, False)
    (statement,) = (await observe(subject, ScriptedBackend("vllm", one_by_one), CACHED, in_flight=3)).statements
    assert (statement.topic, statement.value) == (Topic.IN_FLIGHT_BATCHING, True)


async def test_a_generation_that_fails_is_told_in_the_adapters_words(subject: Subject) -> None:
    backend = ScriptedBackend("vllm", [BackendError("vllm failed")])
    (finding,) = (await observe(subject, backend, CACHED, in_flight=0)).findings
    assert (finding.fault, finding.seen) == (Fault.CANNOT_GENERATE, "vllm failed")


async def test_a_failure_while_one_waits_for_the_other_is_one_too(subject: Subject) -> None:
    def fail_if_long(request: GenerateRequest) -> Script:
        if request.params.max_tokens in LONG_TOKENS:
            return [[7], BackendError("out of memory")]
        return [Pause(0.05), *one_by_one(request)]

    (finding,) = (await observe(subject, ScriptedBackend("vllm", fail_if_long), CACHED, in_flight=0)).findings
    assert finding.seen == "out of memory"
