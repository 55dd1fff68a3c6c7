"""The engine without a model: as many tokens as asked for, batched as the real one's."""

from dataclasses import replace

import pytest

from engines.reference.checkpoint import Checkpoint
from engines.reference.recital import Recital
from engines.reference.sampling import SamplingParams
from tests.engines.test_engine import ids, prompt_of, run

PARAMS = SamplingParams(max_tokens=7, ignore_eos=True)


def test_every_answer_is_one_token_as_often_as_asked_for(tiny: Checkpoint) -> None:
    engine = Recital(tiny, max_batch=3)
    for number in range(8):
        engine.add(str(number), prompt_of(number), replace(PARAMS, max_tokens=number + 1))
    answers = run(engine)
    assert {name: len(set(ids(answer))) for name, answer in answers.items()} == {str(n): 1 for n in range(8)}
    assert {name: len(answer) for name, answer in answers.items()} == {str(n): n + 1 for n in range(8)}
    assert {answer[-1].finish_reason for answer in answers.values()} == {"length"}
    assert engine.stats.generated_tokens == 36


def test_a_step_serves_those_it_is_told_to_and_a_prompt_longer_than_a_step_takes_two(tiny: Checkpoint) -> None:
    engine = Recital(tiny, prefill_tokens=16)
    engine.add("long", prompt_of(1, length=24), PARAMS)
    engine.add("other", prompt_of(2, length=4), PARAMS)
    assert engine.step({"long"}) == []
    assert [output.request_id for output in engine.step({"long"})] == ["long"]
    assert [output.request_id for output in engine.step({"other"})] == ["other"]
    assert engine.stats.prompt_tokens == 28


def test_a_cancelled_answer_is_recited_no_further(tiny: Checkpoint) -> None:
    engine = Recital(tiny)
    engine.add("a", prompt_of(1), PARAMS)
    engine.step()
    engine.cancel("a")
    assert engine.step() == []
    assert engine.stats.running == 0


@pytest.mark.parametrize("prompt", [[], [-1]])
def test_it_refuses_what_the_engine_refuses(tiny: Checkpoint, prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt"):
        Recital(tiny).add("a", prompt, PARAMS)
