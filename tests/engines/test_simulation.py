"""Engines in simulated time against what can be worked out by hand."""

from collections.abc import Iterable, Mapping

import pytest

from engines.simulation import Arrival, Engine, EngineSpeed, Job, Node, simulate

SLOW = EngineSpeed(lambda count: 0.010 + 0.001 * count, 1000.0, 4, prompt_tokens=100)
FAST = EngineSpeed(lambda count: 0.004, 1000.0, 4, prompt_tokens=100)


class Places:
    """Places requests in turn; moves all from one engine to another at one beat."""

    beat_s = 0.05

    def __init__(self, *names: str, move_at: float | None = None) -> None:
        self.names = names
        self.move_at = move_at
        self.placed = 0

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        self.placed += 1
        return self.names[(self.placed - 1) % len(self.names)]

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        if self.move_at is None or now < self.move_at:
            return []
        self.move_at = None
        return [(job, "fast") for job in engines["slow"].jobs()]


def run(*arrivals: Arrival, router: Places, interference: float = 0.0) -> list[Job]:
    return simulate(arrivals, {"slow": SLOW, "fast": FAST}, interference, router)


def test_an_answer_takes_a_step_for_each_token() -> None:
    (job,) = run(Arrival(1.0, 100, 10), router=Places("slow"))
    assert job.first_s == pytest.approx(1.011)
    assert job.end_s == pytest.approx(1.11)


def test_steps_grow_with_what_runs_and_prompts_beyond_the_measured_length_take_time() -> None:
    jobs = run(Arrival(0.0, 100, 10), Arrival(0.0, 100, 10), router=Places("slow"))
    # The first begins alone, and the second waits for its step.
    assert jobs[0].end_s == pytest.approx(0.011 + 9 * 0.012)
    assert jobs[1].end_s == pytest.approx(0.011 + 9 * 0.012 + 0.011)
    (long,) = run(Arrival(0.0, 600, 10), router=Places("slow"))
    assert long.end_s == pytest.approx(0.5 + 10 * 0.011)


def test_beyond_the_most_in_flight_requests_wait() -> None:
    jobs = run(*[Arrival(0.0, 100, 10)] * 6, router=Places("fast"))
    ends = sorted(job.end_s or 0 for job in jobs)
    assert ends[0] == pytest.approx(0.04)
    assert ends[-1] == pytest.approx(0.084, abs=0.005)


@pytest.mark.parametrize(("interference", "seconds"), [(0.0, 0.11), (1.0, 0.15), (0.5, 0.13)])
def test_engines_that_share_their_gpus_slow_each_other_down(interference: float, seconds: float) -> None:
    """Ten steps of 11 ms, beside an engine with steps of 4 ms that works all the time."""
    jobs = run(Arrival(0.0, 100, 10), Arrival(0.0, 100, 1000), router=Places("slow", "fast"), interference=interference)
    assert jobs[0].end_s == pytest.approx(seconds)


def test_a_moved_answer_goes_on_with_what_it_has() -> None:
    (job,) = run(Arrival(0.0, 100, 10), router=Places("slow", move_at=0.05))
    # Four steps of 11 ms are over at 50 ms; the fifth is lost. 104 tokens are prefilled, and six come.
    assert job.end_s == pytest.approx(0.05 + 0.104 + 6 * 0.004)
    assert job.first_s == pytest.approx(0.011)
    assert job.engine == "fast"


def test_every_request_ends_once_and_in_any_order() -> None:
    arrivals = [Arrival(0.01 * index, 100, 5 + 7 * index % 11) for index in range(60)]
    jobs = run(*arrivals, router=Places("slow", "fast", move_at=0.3), interference=1.0)
    assert [job.arrival for job in jobs] == arrivals
    assert all(job.end_s is not None and job.end_s > job.arrival.at for job in jobs)


def test_a_node_that_goes_on_event_by_event_does_the_same() -> None:
    arrivals = [Arrival(0.01 * index, 100, 5 + 7 * index % 11) for index in range(60)]
    node, ended = Node({"slow": SLOW, "fast": FAST}, 1.0, Places("slow", "fast")), list[Job]()
    for arrival in arrivals:
        while node.find_next() <= arrival.at:
            ended += node.go_on()
        ended += node.run(arrival.at)
        node.arrive(arrival)
    while node.in_flight:
        ended += node.go_on()
    expected = run(*arrivals, router=Places("slow", "fast"), interference=1.0)
    assert sorted(job.end_s or 0 for job in ended) == pytest.approx(sorted(job.end_s or 0 for job in expected))


def test_a_node_that_dies_drops_what_runs_and_what_waits_and_serves_again() -> None:
    node = Node({"slow": SLOW}, 0.0, Places("slow"))
    jobs = [node.arrive(Arrival(0.0001 * index, 100, 10)) for index in range(6)]
    node.run(0.02)
    assert node.clear() == jobs
    assert node.in_flight == 0
    again = node.arrive(Arrival(0.02, 100, 10))
    assert node.run(1.0) == [again]
    assert again.end_s == pytest.approx(0.02 + 10 * 0.011)
