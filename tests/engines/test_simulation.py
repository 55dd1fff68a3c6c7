"""Engines in simulated time against what can be worked out by hand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from engines.physics import EngineModel, Job
from engines.simulation import Engine, Node, NodeSpec, simulate

SLOW = EngineModel(((1, 11.0), (4, 14.0)), prompt_ms=100.0, max_sequences=4)
FAST = EngineModel(((1, 4.0),), prompt_ms=100.0, max_sequences=4)
PROMPT = 10  # tokens, 1 ms of prefill


class Places:
    """Places requests in turn; moves all from one engine to another at one beat."""

    beat_s = 0.05

    def __init__(self, *names: str, move_at: float | None = None) -> None:
        self.names = names
        self.move_at = move_at
        self.placed = 0
        self.begun: list[str] = []

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        self.placed += 1
        return self.names[(self.placed - 1) % len(self.names)]

    def began(self, job: Job, engine: str, now: float) -> None:
        self.begun.append(engine)

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        if self.move_at is None or now < self.move_at:
            return []
        self.move_at = None
        return [(job, "fast") for job in engines["slow"].jobs()]


def run(*jobs: Job, router: Places, interference: float = 0.0, move_s: float = 0.0) -> Sequence[Job]:
    return simulate(jobs, NodeSpec({"slow": SLOW, "fast": FAST}, interference, move_s), router)


def mixed() -> list[Job]:
    return [Job(0.01 * index, PROMPT, 5 + 7 * index % 11) for index in range(60)]


def find_end_s(job: Job) -> float:
    assert job.end_s is not None
    return job.end_s


def test_an_answer_takes_its_prefill_and_a_step_for_each_token() -> None:
    (job,) = run(Job(1.0, PROMPT, 10), router=Places("slow"))
    assert job.first_s == pytest.approx(1.012)
    assert job.end_s == pytest.approx(1.111)


def test_steps_grow_with_what_runs_and_everyone_waits_for_a_prompt() -> None:
    first, second = run(Job(0.0, PROMPT, 10), Job(0.0, PROMPT, 10), router=Places("slow"))
    # The first begins alone, and the second waits for its step; its prompt is read in a step of one.
    assert first.end_s == pytest.approx(0.012 + 0.012 + 8 * 0.012)
    assert second.end_s == pytest.approx(find_end_s(first) + 0.011)


def test_a_request_takes_time_before_and_after_its_steps() -> None:
    engine = replace(SLOW, request_ms=20.0)
    (job,) = simulate([Job(0.0, PROMPT, 1)], NodeSpec({"slow": engine}), Places("slow"))
    assert [job.first_s, job.end_s] == pytest.approx([0.022, 0.032])


def test_beyond_the_most_in_flight_requests_wait() -> None:
    ends = sorted(find_end_s(job) for job in run(*(Job(0.0, PROMPT, 10) for _ in range(6)), router=Places("fast")))
    assert ends[0] == pytest.approx(0.044, abs=0.005)
    assert ends[-1] == pytest.approx(0.088, abs=0.006)


@pytest.mark.parametrize(("interference", "seconds"), [(0.0, 0.111), (1.0, 0.222), (0.5, 0.1665)])
def test_engines_that_share_their_gpus_slow_each_other_down(interference: float, seconds: float) -> None:
    """Ten steps of 11 ms, beside an engine with steps of 4 ms that works all the time."""
    jobs = [Job(0.0, PROMPT, 1000), Job(0.005, PROMPT, 10)]
    jobs = list(run(*jobs, router=Places("fast", "slow"), interference=interference))
    assert find_end_s(jobs[1]) - 0.005 == pytest.approx(seconds)


def test_a_moved_answer_goes_on_with_what_it_has() -> None:
    router = Places("slow", move_at=0.05)
    (job,) = run(Job(0.0, PROMPT, 10), router=router, move_s=0.02)
    # Four steps are over at 45 ms; the fifth is lost. 14 tokens are prefilled, and six come.
    assert job.end_s == pytest.approx(0.05 + 0.02 + 0.0014 + 6 * 0.004)
    assert job.first_s == pytest.approx(0.012)
    assert router.begun == ["slow", "fast"]


def test_every_request_ends_once_and_in_any_order() -> None:
    arrivals = mixed()
    jobs = run(*arrivals, router=Places("slow", "fast", move_at=0.3), interference=1.0)
    assert list(jobs) == arrivals
    assert all(find_end_s(job) > job.at for job in jobs)


def test_a_node_that_goes_on_event_by_event_does_the_same() -> None:
    spec = NodeSpec({"slow": SLOW, "fast": FAST}, interference=1.0)
    node, ended = Node(spec, Places("slow", "fast")), list[Job]()
    for job in mixed():
        while node.find_next() <= job.at:
            ended += node.go_on()
        ended += node.run(job.at)
        node.arrive(job)
    while node.in_flight:
        ended += node.go_on()
    expected = run(*mixed(), router=Places("slow", "fast"), interference=1.0)
    assert sorted(map(find_end_s, ended)) == pytest.approx(sorted(map(find_end_s, expected)))


def test_a_node_that_dies_drops_what_runs_and_what_waits_and_serves_again() -> None:
    node = Node(NodeSpec({"slow": SLOW}), Places("slow"))
    jobs = [node.arrive(Job(0.0001 * index, PROMPT, 10)) for index in range(6)]
    node.run(0.02)
    assert node.clear() == jobs
    assert node.in_flight == 0
    again = node.arrive(Job(0.02, PROMPT, 10))
    assert node.run(1.0) == [again]
    assert again.end_s == pytest.approx(0.02 + 0.001 + 10 * 0.011)
