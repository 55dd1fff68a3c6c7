"""The engine on its threads: delivery, cancellation, failure, pace. Real engine, real threads, no wire."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from engines.physics import EngineModel
from engines.reference.checkpoint import Checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.outlet import Outlet
from engines.reference.paced_outlet import PacedOutlet
from engines.reference.pacing import Pacer
from engines.reference.runner import Runner, post_inline
from engines.reference.sampling import SamplingParams
from tests.engines.wires.expected import run_alone
from tests.processes import comes_true

PROMPT = [5, 6, 7]
# 20 ms to the first token, 5 ms from one to the next, however many there are, if one request comes.
PACE = EngineModel(((1, 5.0),), mixed_ms=20.0)


class Recorder:
    """A Receiver that remembers what came, when, and with whom."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.times: list[float] = []
        self.error: str | None = None
        self.is_over = threading.Event()

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self.outputs += outputs
        self.times += [time.monotonic()] * len(outputs)
        if outputs[-1].finish_reason:
            self.is_over.set()

    def failed(self, message: str) -> None:
        self.error = message
        self.is_over.set()

    @property
    def ids(self) -> list[int]:
        return [output.token_id for output in self.outputs]


@contextmanager
def running(engine: Engine, outlet: Outlet | None = None, post: Callable[..., Any] = post_inline) -> Iterator[Runner]:
    runner = Runner(engine, post, outlet)
    runner.start()
    try:
        yield runner
    finally:
        runner.close()
        assert not runner.is_alive


def paced(capacity: int = 8) -> PacedOutlet:
    return PacedOutlet(Pacer(replace(PACE, max_sequences=capacity)))


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def alone(checkpoint: Checkpoint, max_tokens: int) -> list[int]:
    return [output.token_id for output in run_alone(Engine(checkpoint, max_batch=1), PROMPT, greedy(max_tokens))]


@pytest.mark.parametrize("make_outlet", [lambda: None, paced], ids=["free", "paced"])
def test_answers_arrive_whole_and_in_order(tiny: Checkpoint, make_outlet: Callable[[], Outlet | None]) -> None:
    with running(Engine(tiny, max_batch=8), make_outlet()) as runner:
        recorders = [Recorder() for _ in range(8)]
        for index, recorder in enumerate(recorders):
            runner.submit(str(index), PROMPT, greedy(12), recorder)
        for recorder in recorders:
            assert recorder.is_over.wait(10)
            assert recorder.ids == alone(tiny, 12)
            assert [output.position for output in recorder.outputs] == list(range(1, 13))
        assert comes_true(lambda: runner.stats.running == 0)
        assert runner.stats.generated_tokens == 96
        assert runner.stats.prompt_tokens == 24


@pytest.mark.parametrize("make_outlet", [lambda: None, paced], ids=["free", "paced"])
def test_cancelled_request_gets_nothing_more_and_leaves_the_engine(
    tiny: Checkpoint, make_outlet: Callable[[], Outlet | None]
) -> None:
    with running(Engine(tiny, max_batch=2), make_outlet()) as runner:
        left, other = Recorder(), Recorder()
        runner.submit("left", PROMPT, greedy(60), left)
        runner.submit("other", PROMPT, greedy(30), other)
        assert comes_true(lambda: bool(left.outputs))
        runner.cancel("left")
        count = len(left.outputs)
        runner.cancel("left")
        assert other.is_over.wait(10)
        assert other.ids == alone(tiny, 30)
        assert len(left.outputs) == count
        assert comes_true(lambda: runner.stats.running + runner.stats.waiting + runner.stats.kv_tokens_used == 0)


def test_what_the_engine_refuses_fails_with_its_words(tiny: Checkpoint) -> None:
    with running(Engine(tiny), paced()) as runner:
        recorder = Recorder()
        runner.submit("1", [5000], greedy(4), recorder)
        assert recorder.is_over.wait(10)
        assert recorder.error == "the prompt holds token ids outside the vocabulary of 128"
        assert comes_true(lambda: runner.stats.running == 0)


def test_an_engine_that_breaks_fails_what_is_in_flight_and_is_reported_dead(tiny: Checkpoint) -> None:
    class Broken(Engine):
        def step(self, only: Collection[str] | None = None) -> list[TokenOutput]:
            raise FloatingPointError("no more")

    with running(Broken(tiny)) as runner:
        recorder = Recorder()
        runner.submit("1", PROMPT, greedy(4), recorder)
        assert recorder.is_over.wait(10)
        assert recorder.error == "The engine failed: FloatingPointError: no more"
        assert comes_true(lambda: not runner.is_alive)
        later = Recorder()
        runner.submit("2", PROMPT, greedy(4), later)
        assert later.error == recorder.error


def test_idle_runner_takes_no_steps_and_no_processor_time(tiny: Checkpoint) -> None:
    with running(Engine(tiny), paced()) as runner:
        recorder = Recorder()
        runner.submit("1", PROMPT, greedy(4), recorder)
        assert recorder.is_over.wait(10)
        before, steps = time.process_time(), runner.stats.steps
        time.sleep(0.5)
        assert runner.stats.steps == steps
        assert time.process_time() - before < 0.05


def test_no_token_leaves_before_its_time_and_the_pace_is_kept_on_average(tiny: Checkpoint) -> None:
    with running(Engine(tiny, max_batch=8), paced()) as runner:
        recorder = Recorder()
        start = time.monotonic()
        runner.submit("1", PROMPT, greedy(50), recorder)
        assert recorder.is_over.wait(30)
    due = [start + 0.02 + 0.005 * position for position in range(50)]
    late = [at - when for at, when in zip(recorder.times, due, strict=True)]
    assert min(late) > -0.001
    assert sorted(late)[10] < 0.05  # even on a busy machine some tokens find a free core


def test_a_slow_step_holds_no_computed_token_back(tiny: Checkpoint) -> None:
    class Slow(Engine):
        """Every step takes three tokens' time, yet gives as many tokens to each."""

        def step(self, only: Collection[str] | None = None) -> list[TokenOutput]:
            outputs = super().step(only)
            time.sleep(0.012)
            return outputs

    outlet = PacedOutlet(Pacer(EngineModel(((1, 20.0),), mixed_ms=100.0)))
    with running(Slow(tiny, max_batch=8), outlet) as runner:
        recorder = Recorder()
        runner.submit("1", PROMPT, greedy(30), recorder)
        assert recorder.is_over.wait(30)
        assert runner.stats.late_tokens < 10
