"""The pacer as tables and in virtual time; no engine, no clock, no event loop."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engines.physics import EngineModel, Job
from engines.reference.pacing import Due, Pacer, SharedNode
from engines.reference.shared_gpus import SharedGPUs
from engines.simulation import NodeSpec, simulate

FLAT = EngineModel(((1, 100.0),), max_sequences=4)
RISING = EngineModel(((1, 100.0), (3, 300.0)), max_sequences=4)
READS = EngineModel(((1, 100.0),), prompt_ms=1000.0, budget_tokens=100, max_sequences=8)  # a token a millisecond
PROMPT = range(5)


def served(pacer: Pacer, until: float = math.inf) -> list[tuple[float, str, int]]:
    """Lets time pass from event to event. Returns when tokens were due, whose, and how many."""
    seen = []
    while (at := pacer.next_due()) <= until and at < math.inf:
        seen += [(round(at, 6), due.request_id, due.tokens) for due in pacer.advance(at)]
    return seen


def names(due: Sequence[Due]) -> str:
    return "".join(each.request_id for each in due)


def test_due_times_follow_from_due_times_however_late_one_looks() -> None:
    pacer = Pacer(FLAT)
    pacer.arrive("a", PROMPT, 9, 0.0)
    assert pacer.advance(0.0) == []
    assert pacer.next_due() == pytest.approx(0.1)
    assert pacer.advance(0.099) == []
    assert names(pacer.advance(0.17)) == "a"
    assert pacer.next_due() == pytest.approx(0.2)
    assert names(pacer.advance(0.45)) == "aaa"
    assert pacer.next_due() == pytest.approx(0.5)


def test_a_request_joins_with_the_next_step_and_slows_those_after_it() -> None:
    pacer = Pacer(RISING)
    pacer.arrive("a", PROMPT, 4, 0.0)
    pacer.advance(0.05)
    pacer.arrive("b", PROMPT, 2, 0.05)
    assert served(pacer) == [
        (0.1, "a", 1),
        (0.2, "a", 1), (0.2, "b", 1),
        (0.4, "a", 1), (0.4, "b", 1),
        (0.5, "a", 1),
    ]  # fmt: skip
    assert (pacer.running, pacer.waiting) == (0, 0)


def test_prompts_are_read_in_order_within_the_budget_and_all_wait_for_them() -> None:
    pacer = Pacer(READS)
    pacer.arrive("a", range(50), 4, 0.0)
    pacer.arrive("b", range(120), 1, 0.0)
    pacer.arrive("c", range(10), 1, 0.0)
    # A step of 100 ms, and 1 ms for each of 50; then 99 of b beside a, then its last 21 and c's 10.
    first, second = 0.15, 0.15 + 0.199
    assert served(pacer) == [
        (first, "a", 1), (round(second, 6), "a", 1), (round(second + 0.131, 6), "a", 1),
        (round(second + 0.131, 6), "b", 1), (round(second + 0.131, 6), "c", 1), (round(second + 0.231, 6), "a", 1),
    ]  # fmt: skip


def test_context_and_floors_cost_what_the_model_has() -> None:
    engine = replace(FLAT, context_ms=1e5, mixed_ms=450.0)
    pacer = Pacer(engine)
    pacer.arrive("a", PROMPT, 3, 0.0)
    # With the prompt the floor; then 100 ms, and 100 for each of 6 and 7 tokens of context.
    assert [at for at, _, _ in served(pacer)] == pytest.approx([0.45, 0.45 + 0.7, 0.45 + 0.7 + 0.8])


def test_half_of_what_a_request_takes_passes_before_its_steps_and_half_after_each() -> None:
    pacer = Pacer(replace(FLAT, request_ms=20.0))
    pacer.arrive("a", PROMPT, 2, 1.0)
    assert served(pacer) == [(1.12, "a", 1), (1.22, "a", 1)]


def test_requests_go_to_the_replica_with_the_fewest() -> None:
    pacer = Pacer(replace(RISING, replicas=2))
    for name in "abc":
        pacer.arrive(name, PROMPT, 2, 0.0)
    times = served(pacer)
    assert [each for each in times if each[1] == "b"] == [(0.1, "b", 1), (0.2, "b", 1)]
    assert [each for each in times if each[1] == "c"] == [(0.2, "c", 1), (0.3, "c", 1)]  # behind a's first step


def test_beyond_the_most_sequences_requests_wait_in_order() -> None:
    pacer = Pacer(replace(FLAT, max_sequences=1))
    for name in "abc":
        pacer.arrive(name, PROMPT, 2, 0.0)
    pacer.advance(0.0)
    assert (pacer.running, pacer.waiting) == (1, 2)
    assert names(pacer.advance(0.25)) == "aa"
    pacer.leave("c")
    assert (pacer.running, pacer.waiting) == (1, 0)
    assert served(pacer) == [(0.3, "b", 1), (0.4, "b", 1)]


def test_a_request_waits_until_there_is_kv_for_its_prompt() -> None:
    pacer = Pacer(replace(FLAT, kv_tokens=100))
    pacer.arrive("a", range(60), 3, 0.0)
    pacer.arrive("b", range(60), 1, 0.0)
    assert served(pacer) == [(0.1, "a", 1), (0.2, "a", 1), (0.3, "a", 1), (0.4, "b", 1)]


def test_where_kv_runs_out_the_last_is_read_again_and_loses_no_token() -> None:
    pacer = Pacer(replace(FLAT, kv_tokens=30))
    for name in "ab":
        pacer.arrive(name, range(10), 12, 0.0)
    times = served(pacer)
    assert Counter(name for _, name, _ in times) == {"a": 12, "b": 12}
    assert max(at for at, name, _ in times if name == "b") > max(at for at, name, _ in times if name == "a")


@pytest.mark.parametrize(("each", "gifts"), [(2.5, {2, 3}), (3.0, {3}), (1.25, {1, 2})])
def test_a_step_gives_whole_tokens_that_differ_from_sequence_to_sequence(each: float, gifts: set[int]) -> None:
    pacer = Pacer(replace(FLAT, tokens_per_step=each, verified=4))
    for name in "abcd":
        pacer.arrive(name, PROMPT, 201, 0.0)
    given: dict[str, list[int]] = {name: [] for name in "abcd"}
    for _, name, tokens in served(pacer):
        given[name].append(tokens)
    for gift in given.values():
        assert (gift[0], sum(gift)) == (1, 201)
        assert set(gift[1:-1]) == gifts
        assert len(gift) == pytest.approx(1 + 200 / each, abs=1)
    assert (len({tuple(gift) for gift in given.values()}) > 1) == (each != 3)
    counts = pacer.counts
    assert counts.drafts == sum(map(len, given.values())) - 4
    assert counts.accepted == 4 * 200 - counts.drafts
    assert all(replica.context == pytest.approx(0.0) for replica in pacer.replicas)


def test_a_cancelled_request_is_due_no_more_wherever_it_was() -> None:
    pacer = Pacer(replace(FLAT, request_ms=20.0))
    pacer.arrive("a", PROMPT, 3, 0.0)
    pacer.advance(0.05)
    for name in "bc":
        pacer.arrive(name, PROMPT, 3, 0.05)
    pacer.advance(0.05)
    pacer.leave("c")  # has not reached a replica
    assert names(pacer.advance(0.13)) == "a"
    pacer.leave("b")  # reads its prompt in the step under way
    pacer.leave("b")
    assert {name for _, name, _ in served(pacer)} == {"a"}
    assert repr(pacer) == "<Pacer replicas=1 running=0 waiting=0>"


@dataclass
class Beside:
    """Another engine on the same GPUs, and the steps of this one that it received."""

    step_s: float
    noted: list[float] = field(default_factory=list)

    def note(self, step_s: float) -> None:
        self.noted.append(step_s)

    def longest_s(self) -> float:
        return self.step_s


def test_a_step_that_begins_beside_others_takes_a_multiple_of_its_time_longer() -> None:
    beside = Beside(0.3)
    pacer = Pacer(replace(FLAT, replicas=2), SharedNode(beside, 1.5))
    pacer.arrive("a", PROMPT, 2, 0.0)
    assert names(pacer.advance(0.1 + 0.15)) == "a"
    beside.step_s = 0.0  # the step that has begun is as long as it was
    assert served(pacer) == [(0.5, "a", 1)]
    assert beside.noted == [0.1, 0.1, 0.0]


def test_engines_learn_of_each_others_steps_and_not_of_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "gpus"
    one, two, three = (SharedGPUs(path, seat) for seat in range(3))
    one.note(0.25)
    three.note(0.125)
    assert (one.longest_s(), two.longest_s()) == (0.125, 0.25)
    program = (
        f"import pathlib, {SharedGPUs.__module__} as gpus; gpus.SharedGPUs(pathlib.Path({str(path)!r}), 3).note(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    two.note(0.5)
    assert (one.longest_s(), two.longest_s()) == (0.5, 0.25)


def test_what_two_prompts_share_is_read_once() -> None:
    pacer = Pacer(replace(READS, kv_tokens=1000), caches_prefixes=True)
    pacer.arrive("a", range(64), 1, 0.0)
    assert served(pacer) == [(0.164, "a", 1)]
    pacer.arrive("b", [*range(48), *range(90, 106)], 1, 1.0)
    pacer.advance(1.0)
    (due,) = pacer.advance(2.0)
    assert due == Due("b", 1, 48)
    assert pacer.counts[-2:] == (128, 48)
    pacer.arrive("c", range(64), 1, 3.0)  # all of it is there, but the last token has to be computed
    assert served(pacer) == [(3.116, "c", 1)]


class Alone:
    """A node's router where there is one engine."""

    beat_s = math.inf

    def place(self, job: Job, engines: object, now: float) -> str:
        return "it"

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: object, now: float) -> Iterable[tuple[Job, str]]:
        return []


@pytest.mark.parametrize("each", [1.0, 2.5])
def test_the_pacer_takes_as_long_as_the_simulation(each: float) -> None:
    """Whole tokens apart: with several a step an answer may end a step earlier than in the mean."""
    engine = EngineModel(
        ((1, 5.0), (64, 9.0)), 0.02, 15.0, 0.5, 20.0, 9.0, 11.0, tokens_per_step=each, verified=4, replicas=2
    )
    lengths = [(0.03 * index, 50 + 37 * index % 900, 20 + 53 * index % 300) for index in range(120)]
    jobs = simulate([Job(*each) for each in lengths], NodeSpec({"it": engine}), Alone())
    pacer, ends = Pacer(engine), dict[str, float]()
    for index, (at, prompt_tokens, tokens) in enumerate(lengths):
        ends |= {name: when for when, name, _ in served(pacer, at)}
        pacer.advance(at)
        pacer.arrive(str(index), range(prompt_tokens), tokens, at)
    ends |= {name: when for when, name, _ in served(pacer)}
    mine = [ends[str(index)] - job.at for index, job in enumerate(jobs)]
    theirs = [(job.end_s or 0.0) - job.at for job in jobs]
    assert sum(mine) == pytest.approx(sum(theirs), rel=1e-5 if each == 1 else 0.01)
