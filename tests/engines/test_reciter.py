"""Answers that no model computes: their ids as tables, their pace on a real event loop."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engines.physics import EngineModel
from engines.reference.engine import TokenOutput
from engines.reference.launch import WEIGHTS, find_words
from engines.reference.pacing import Pacer
from engines.reference.recital import Recital
from engines.reference.reciter import Reciter
from engines.reference.sampling import SamplingParams
from tests.engines.wires.expected import TOKENIZER

WORDS = range(100, 900)
PARAMS = SamplingParams(max_tokens=60)
STEPS = EngineModel(((1, 10.0),), mixed_ms=20.0)


def recite(prompt: Sequence[int], params: SamplingParams = PARAMS, context_length: int = 8192) -> list[int | str]:
    """The answer's ids, and at last why it ended."""
    recital, ids = Recital(prompt, params, WORDS, min(params.max_tokens, context_length - len(prompt))), list[int]()
    reason = None
    while reason is None:
        token_id, reason = recital.take()
        ids.append(token_id)
    return [*ids, reason]


@pytest.mark.parametrize("length", [1, 12, 31, 32, 33, 500])
@pytest.mark.parametrize("moved_after", [1, 7, 19, 20, 21, 59])
def test_an_answer_goes_on_alike_from_wherever_it_is_moved(length: int, moved_after: int) -> None:
    prompt = [5 * index % 97 for index in range(length)]
    whole = recite(prompt)
    beginning = [token_id for token_id in whole[:moved_after] if isinstance(token_id, int)]
    rest = recite([*prompt, *beginning], replace(PARAMS, max_tokens=60 - moved_after))
    assert [*beginning, *rest] == whole


def test_other_prompts_have_other_answers_and_an_answer_does_not_repeat_itself() -> None:
    answers = [recite([index, 2, 3]) for index in range(20)]
    assert len({tuple(answer) for answer in answers}) == 20
    assert all(len(set(answer)) > 45 for answer in answers)


def test_an_answer_ends_by_its_length_and_with_the_context() -> None:
    assert [recite([1])[-1], len(recite([1]))] == ["length", 61]
    assert len(recite(range(8100), replace(PARAMS, max_tokens=500))) == 8192 - 8100 + 1


def test_end_ids_never_come_and_stop_ids_end_the_answer_but_not_too_early() -> None:
    prompt = range(40)
    tenth, thirtieth = recite(prompt)[9], recite(prompt)[29]
    assert isinstance(tenth, int)
    assert isinstance(thirtieth, int)
    assert tenth not in recite(prompt, replace(PARAMS, end_ids=(tenth,)))
    stopped = recite(prompt, replace(PARAMS, stop_ids=(tenth,), ignore_eos=True))
    assert (stopped[-2:], len(stopped)) == ([tenth, "stop"], 11)
    later = recite(prompt, replace(PARAMS, stop_ids=(tenth, thirtieth), min_tokens=10))
    assert (later[-2:], len(later)) == ([thirtieth, "stop"], 31)


def test_words_are_text_of_their_own_and_none_is_special() -> None:
    texts = [TOKENIZER.decode([token_id], skip_special_tokens=False) for token_id in find_words(WEIGHTS)]
    assert len(texts) > 500
    assert all(text.strip().isalpha() and text.isascii() for text in texts)


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"<|end|>": 0, "1": 1}}}')
    with pytest.raises(ValueError, match="no tokens that are plain words"):
        find_words(tmp_path)


class Recorder:
    """A Receiver that remembers what came, and when."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.times: list[float] = []
        self.is_over = asyncio.Event()

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self.outputs += outputs
        self.times.append(time.monotonic())
        if outputs[-1].finish_reason:
            self.is_over.set()

    def failed(self, message: str) -> None:
        raise AssertionError(message)


def make_reciter(engine: EngineModel = STEPS) -> Reciter:
    reciter = Reciter(Pacer(engine), WORDS, 8192)
    reciter.start()
    return reciter


async def test_tokens_leave_at_their_steps_and_never_before() -> None:
    reciter, recorder = make_reciter(), Recorder()
    start = time.monotonic()
    reciter.submit("1", [1, 2, 3], replace(PARAMS, max_tokens=30), recorder)
    assert (reciter.stats.running, reciter.stats.waiting) == (1, 0)
    await recorder.is_over.wait()
    late = [at - (start + 0.02 + 0.01 * step) for step, at in enumerate(recorder.times)]
    assert len(late) == 30
    assert min(late) > -0.001
    assert sorted(late)[5] < 0.05  # even on a busy machine some find a free core
    assert [output.position for output in recorder.outputs] == list(range(1, 31))
    assert [output.token_id for output in recorder.outputs] == recite([1, 2, 3])[:30]
    stats = reciter.stats
    assert (stats.running, stats.waiting, stats.prompt_tokens, stats.generated_tokens) == (0, 0, 3, 30)


async def test_several_tokens_of_a_step_come_in_one_call() -> None:
    reciter, recorder = make_reciter(replace(STEPS, tokens_per_step=3.0, verified=4)), Recorder()
    reciter.submit("1", [1], replace(PARAMS, max_tokens=31), recorder)
    await recorder.is_over.wait()
    assert (len(recorder.times), len(recorder.outputs)) == (11, 31)
    stats = reciter.stats
    assert (stats.drafts, stats.drafted, stats.accepted) == (10, 30, 20)


async def test_a_cancelled_request_gets_nothing_more_and_one_that_stops_leaves_its_replica() -> None:
    reciter, left, stopped, other = make_reciter(), Recorder(), Recorder(), Recorder()
    tenth = recite([9])[9]
    assert isinstance(tenth, int)
    reciter.submit("left", [1], replace(PARAMS, max_tokens=500), left)
    reciter.submit("stopped", [9], replace(PARAMS, max_tokens=500, stop_ids=(tenth,)), stopped)
    reciter.submit("other", [2], replace(PARAMS, max_tokens=20), other)
    await asyncio.sleep(0.06)
    reciter.cancel("left")
    reciter.cancel("left")
    count = len(left.outputs)
    await other.is_over.wait()
    assert len(left.outputs) == count > 0
    assert (len(stopped.outputs), stopped.outputs[-1].finish_reason) == (10, "stop")
    assert (reciter.stats.running, reciter.stats.waiting, reciter.stats.kv_tokens_used) == (0, 0, 0)


async def test_an_idle_reciter_takes_no_processor_time_and_a_closed_one_calls_nobody() -> None:
    reciter, first, second = make_reciter(), Recorder(), Recorder()
    reciter.submit("1", [1], replace(PARAMS, max_tokens=3), first)
    await first.is_over.wait()
    before = time.process_time()
    await asyncio.sleep(0.3)
    assert time.process_time() - before < 0.03
    reciter.submit("2", [1], PARAMS, second)
    reciter.close()
    await asyncio.sleep(0.05)
    assert second.outputs == []
