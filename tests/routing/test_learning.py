"""How fast engines are beside their model, by the beats of simulated ones that are slower or faster."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from engines.physics import EngineModel, Job, Replica
from engines.physics.prefix_cache import BLOCK_TOKENS, PrefixCache
from engines.simulation import Engine, NodeSpec, simulate
from gateway.core import NO_CACHE_USE, BackendDemand, CacheUse, FirstToken
from gateway.routing.policies.curve import learning
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from gateway.routing.policies.curve.node_model import NodeModel
from tests.routing.nodes import BEAT_S, read_node

ENGINES = {
    "tensor parallel": read_node().low,
    "two replicas": read_node().high,
    "drafts": read_node("spec-plain").low,
}


@dataclass
class Beats:
    """The simulation.Router of one engine, which notes its demand at each beat."""

    beat_s = BEAT_S
    seen: list[BackendDemand] = field(default_factory=list)
    firsts: list[FirstToken] = field(default_factory=list)
    cache_use: CacheUse = NO_CACHE_USE

    def place(self, _job: Job, engines: Mapping[str, Engine], _now: float) -> str:
        (name,) = engines
        return name

    def began(self, job: Job, _engine: str, now: float) -> None:
        self.firsts.append(FirstToken(now, job.prompt_tokens))
        self.cache_use = self.cache_use.add(job.prompt_tokens, job.cached)

    def ended(self, _job: Job, _engine: str, _now: float) -> None: ...

    def beat(self, engines: Mapping[str, Engine], _now: float) -> Iterable[tuple[Job, str]]:
        (engine,) = engines.values()
        self.seen.append(
            BackendDemand(
                engine.in_flight,
                decoding=engine.decoding,
                held=round(engine.context),
                generated=round(engine.generated),
                firsts=tuple(self.firsts),
                cached=self.cache_use.found / max(self.cache_use.queried, 1),
            )
        )
        self.firsts.clear()
        return ()


def serve(
    engine: EngineModel, *, rate: float = 12.0, seconds: float = 40.0, prompt_tokens: int = 2000, shared: float = 0.0
) -> list[BackendDemand]:
    """Serves Poisson arrivals. Returns the beats between the first second and the last arrival.

    `shared`: the part of each prompt with which one of five kinds of prompts begins, where the engine has a cache.
    """
    draw, at, jobs, beats = Random(1), 0.0, list[Job](), Beats()
    while at < seconds:
        at += draw.expovariate(rate)
        length, kind = draw.randrange(1, 2 * prompt_tokens), draw.randrange(5)
        blocks = tuple(hash((kind, index)) for index in range(int(shared * length) // BLOCK_TOKENS))
        jobs.append(Job(at, length, draw.randrange(1, 256), blocks=blocks))
    spec = NodeSpec({"engine": engine}, make_replica=_make_cached if shared else Replica)
    simulate(jobs, spec, beats)
    return beats.seen[20 : round(seconds / BEAT_S)]


def _make_cached(engine: EngineModel) -> Replica:
    return Replica(engine, PrefixCache(1_000_000))


def learn(
    engine: EngineModel, seen: Iterable[BackendDemand], *, elapsed_s: float = BEAT_S, is_alone: bool = True
) -> EngineMemory:
    memory = EngineMemory()
    learning.begin(memory)
    for each in seen:
        learning.learn(memory, engine, each, elapsed_s, is_alone)
    return memory


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("decode", "prefill"), [(1.0, 1.0), (1.4, 1.4), (0.75, 0.75), (1.4, 1.0), (1.0, 1.5)])
def test_the_scales_of_a_wrong_model_are_found(name: str, decode: float, prefill: float) -> None:
    engine = ENGINES[name]
    memory = learn(engine, serve(engine.scaled(decode, prefill), rate=8.0 if engine.verified > 1 else 12.0))
    close = 0.1 if engine.verified == 1 else 0.12  # with two or three tokens a step it is not known how many it took
    assert memory.decode == pytest.approx(decode, rel=close)
    assert memory.prefill == pytest.approx(prefill, rel=close)
    low, _ = learning.correct(replace(read_node(), low=engine), Memory(low=memory))
    for sequences, prompts in ((10, 0), (40, 0), (20, 600)):
        truth = engine.scaled(decode, prefill).step_ms(sequences, 250 * sequences, prompts)
        assert low.step_ms(sequences, 250 * sequences, prompts) == pytest.approx(truth, rel=0.1)
    assert memory.misfit == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("shared", [0.5, 0.8])
@pytest.mark.parametrize("prefill", [1.0, 1.4])
def test_what_a_prefix_cache_holds_is_not_taken_for_fast_prefill(shared: float, prefill: float) -> None:
    engine = ENGINES["tensor parallel"]
    seen = serve(engine.scaled(1.0, prefill), shared=shared, rate=16.0)
    assert seen[-1].cached == pytest.approx(shared, abs=0.05)
    assert learn(engine, seen).prefill == pytest.approx(prefill, rel=0.12)
    whole = learn(engine, [each._replace(cached=0.0) for each in seen])
    assert whole.prefill < 0.75 * prefill  # as it was found before what is cached was known


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("shared", [0.5, 0.8, 0.95])
def test_a_cache_that_is_not_reported_shows_as_fast_prefill_and_not_as_another_engine(name: str, shared: float) -> None:
    engine, memory, wrong = ENGINES[name], EngineMemory(), 0
    learning.begin(memory)
    for seen in serve(engine, shared=shared):
        learning.learn(memory, engine, seen._replace(cached=0.0), BEAT_S, is_alone=True)
        wrong += learning.is_wrong(memory)
    assert memory.decode == pytest.approx(1.0, abs=0.03)
    assert memory.misfit == pytest.approx(0.0, abs=0.03)
    assert memory.prefill < 1 - shared + 0.2
    assert not wrong


def test_an_engine_that_changes_is_followed_within_two_minutes() -> None:
    engine = ENGINES["tensor parallel"]
    before = serve(engine)
    last = before[-1].generated
    after = [each._replace(generated=each.generated + last) for each in serve(engine.scaled(1.5, 1.5), seconds=120)]
    memory = learn(engine, [*before, *after])
    assert memory.decode == pytest.approx(1.5, rel=0.1)
    assert memory.prefill == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(
    ("seen", "elapsed_s", "is_alone"),
    [
        ({}, 0.2, True),  # this process was held up
        ({}, 0.0, True),  # the first beat of all
        ({}, BEAT_S, False),
        ({"foreign": 1}, BEAT_S, True),
        ({"decoding": 0}, BEAT_S, True),
        ({"decoding": 1}, BEAT_S, True),  # one of two replicas has nothing to do
    ],
)
def test_what_shows_something_else_teaches_nothing(
    seen: dict[str, Any],  # Any: by name
    elapsed_s: float,
    is_alone: bool,
) -> None:
    engine = ENGINES["two replicas"]
    beats = [each._replace(**seen) for each in serve(engine.scaled(2.0, 2.0), seconds=5.0)]
    memory = learn(engine, beats, elapsed_s=elapsed_s, is_alone=is_alone)
    assert (memory.decode, memory.prefill, memory.windows) == (1.0, 1.0, 0.0)
    assert memory.seen == beats[-1].generated


def test_one_late_beat_begins_the_window_anew() -> None:
    engine, memory = ENGINES["tensor parallel"], EngineMemory()
    learning.begin(memory)
    for index, each in enumerate(serve(engine.scaled(2.0, 2.0), seconds=5.0)[:80]):
        learning.learn(memory, engine, each, 0.13 if index % 8 == 7 else BEAT_S, is_alone=True)
    assert memory.windows == 0.0


@pytest.mark.parametrize("name", ENGINES)
def test_how_many_run_at_once_shows_where_prompts_wait_for_a_place(name: str) -> None:
    engine = ENGINES[name]
    memory = learn(engine, serve(replace(engine, max_sequences=16), rate=60.0, seconds=10.0, prompt_tokens=200))
    assert memory.max_sequences == pytest.approx(16, abs=1)
    low, high = learning.correct(NodeModel(engine, read_node().high, 0.0, 80, 128, 0.01), Memory(low=memory))
    assert low.max_sequences == 16
    assert high.max_sequences == 16  # of 256, as the other one that was thought to have as many


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("rate", "prompt_tokens", "kv_tokens"),
    [(60.0, 2000, None), (20.0, 4000, None), (20.0, 200, None), (3.0, 8000, None), (60.0, 400, 10_000)],
    ids=["overloaded by prompts", "long prompts", "light", "few and long", "no KV left"],
)
def test_prompts_that_wait_for_something_else_do_not_show_it(
    name: str, rate: float, prompt_tokens: int, kv_tokens: int | None
) -> None:
    engine = replace(ENGINES[name], kv_tokens=kv_tokens)
    assert learn(engine, serve(engine, rate=rate, seconds=10.0, prompt_tokens=prompt_tokens)).max_sequences == 0.0


def test_an_engine_that_runs_more_at_once_than_was_thought_is_taken_at_that() -> None:
    node, engine = read_node(), ENGINES["tensor parallel"]
    small = replace(engine, max_sequences=8)
    memory = learn(small, serve(engine, rate=60.0, seconds=10.0, prompt_tokens=200))
    assert memory.max_sequences > 30
    low, high = learning.correct(replace(node, low=small), Memory(low=memory))
    assert low.max_sequences == round(memory.max_sequences)
    assert high.max_sequences == node.high.max_sequences  # the other one is not taken to run more, too


def test_a_worker_that_dies_teaches_nothing() -> None:
    """Its tokens are counted no more: the sum falls, and then goes on from there."""
    engine = ENGINES["tensor parallel"]
    beats = serve(engine)
    lost = [each._replace(generated=each.generated - (2000 if index > 200 else 0)) for index, each in enumerate(beats)]
    assert learn(engine, lost).decode == pytest.approx(1.0, rel=0.1)
    assert learn(engine, lost).error == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(("scale", "error", "is_wrong"), [(1.0, 0.0, False), (1.25, 0.22, False), (1.8, 0.59, True)])
def test_errors_show_how_far_the_model_was_off_and_whether_it_is_another_engine(
    scale: float, error: float, is_wrong: bool
) -> None:
    engine = ENGINES["tensor parallel"]
    memory = learn(engine, serve(engine.scaled(scale, scale)))
    assert memory.error == pytest.approx(error, abs=0.1)
    assert learning.is_wrong(memory) == is_wrong


@pytest.mark.parametrize("scale", [5.0, 0.1])
def test_scales_are_bounded_and_one_at_its_bound_is_wrong(scale: float) -> None:
    engine = ENGINES["tensor parallel"]
    memory = learn(engine, serve(engine.scaled(scale, scale), rate=30.0 if scale > 1 else 300.0, prompt_tokens=20))
    assert memory.decode == (learning.MOST if scale > 1 else learning.LEAST)
    assert learning.is_wrong(memory)


@pytest.mark.parametrize(
    ("memory", "is_wrong"),
    [
        (EngineMemory(error=math.log(1.5), windows=6), True),
        (EngineMemory(error=-math.log(1.5), windows=6), False),
        (EngineMemory(decode=1 / 1.5, windows=6), True),
        (EngineMemory(decode=1 / 1.3, windows=20), False),
        (EngineMemory(error=math.log(1.5), windows=5.9), False),
        (EngineMemory(error=math.log(1.3), windows=20), False),
        (EngineMemory(prefill=learning.MOST, windows=20), True),
        (EngineMemory(prefill=learning.LEAST_PREFILL, windows=20), False),
        (EngineMemory(decode=learning.LEAST, windows=20), True),
        (EngineMemory(decode=learning.LEAST, windows=5), False),
    ],
)
def test_a_model_is_called_wrong_by_enough_windows(memory: EngineMemory, is_wrong: bool) -> None:
    assert learning.is_wrong(memory) == is_wrong


def test_an_engine_nobody_has_seen_is_as_calibrated() -> None:
    node = read_node()
    assert learning.correct(node, Memory()) == (node.low, node.high)
