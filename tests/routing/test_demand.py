"""The coming load: the counts of all workers as one demand."""

from collections.abc import Callable

import pytest

from gateway.core import NO_CACHE_USE, Arrivals, FirstToken
from gateway.flow import FIRSTS
from gateway.lengths import UNKNOWN
from gateway.routing.demand import BEAT_S, SAMPLES, DemandCounts
from gateway.shared import Seat
from tests.fakes.seats import make_seats

BACKENDS = ("low", "high")
NONE = {"low": 0, "high": 0}


def found(workers: int) -> Callable[[int], DemandCounts]:
    """Returns what gives a process its counts, by its seat."""
    fd = make_seats(1)[0].memory.fd
    assert fd is not None
    return lambda index: DemandCounts(BACKENDS, Seat.take(workers, index, fd))


def seats(workers: int) -> list[DemandCounts]:
    return [*map(found(workers), range(workers))]


def serve(counts: DemandCounts, backend: str, prompt_tokens: int, tokens: int, at: float) -> None:
    """One more answer, with so many tokens by now."""
    flow = counts.flow.free[backend]
    flow.begin(prompt_tokens)
    flow.decode(prompt_tokens, at)
    flow.generated += tokens
    flow.held += tokens


def test_the_demand_is_that_of_all_workers() -> None:
    one, two = seats(2)
    one.arrive(3, None, 400)
    two.arrive(1, "high", 20)
    serve(one, "low", 400, 100, at=9.9)
    serve(two, "low", 200, 60, at=9.8)
    two.flow.free["low"].begin(30)  # has had no token yet
    two.flow.fixed["high"].begin(20)
    two.flow.relayed["high"] = 2
    for counts in (one, two):
        counts.note()
    demand = one.sample({"low": 5, "high": 3}, {"low": 1, "high": 0}, 10.0)
    assert demand is not None
    assert demand.arrivals == (Arrivals(10.0, 4),)
    firsts = (FirstToken(9.8, 200), FirstToken(9.9, 400))
    assert demand.backends == {
        "low": (5, 0, 0.0, 2, 760, 790, 160, firsts, 1, 0.0),
        "high": (3, 3, 0.25, 0, 0, 0, 0, (), 2, 0.0),
    }
    assert (sorted(demand.prompts), demand.in_flight) == ([20, 400], 8)
    two.clear(1)
    later = two.sample({"low": 5, "high": 0}, NONE, 11.0)
    assert later is not None
    assert later.backends == {
        "low": (5, 0, 0.0, 1, 500, 500, 100, (), 0, 0.0),
        "high": (0, 0, pytest.approx(0.25), 0, 0, 0, 0, (), 0, 0.0),
    }
    assert [sample.total for sample in later.arrivals] == [4, 4]  # what had arrived stays counted


def test_a_first_token_is_delivered_once_whichever_worker_asks() -> None:
    one, two = seats(2)
    delivered = list[FirstToken]()
    for beat in range(6):
        for worker, counts in enumerate((one, two)):
            serve(counts, "high", 10 * beat + worker + 1, 0, at=beat + worker / 10)
            counts.note()
        demand = (one, two)[beat % 2].sample({"low": 0, "high": 99}, NONE, float(beat))
        assert demand is not None
        assert not demand.backends["low"].firsts
        delivered += demand.backends["high"].firsts
    assert [first.prompt_tokens for first in delivered] == [10 * beat + own for beat in range(6) for own in (1, 2)]


def test_of_a_flood_of_first_tokens_the_last_are_delivered() -> None:
    (one,) = seats(1)
    for index in range(3 * FIRSTS):
        serve(one, "low", index + 1, 0, at=float(index))
    one.note()
    for now, count in ((1.0, FIRSTS), (2.0, 0)):
        demand = one.sample({"low": 99, "high": 0}, NONE, now)
        assert demand is not None
        firsts = demand.backends["low"].firsts
        assert [first.prompt_tokens for first in firsts] == [*range(2 * FIRSTS + 1, 3 * FIRSTS + 1)][:count]


def test_a_worker_that_follows_a_dead_one_is_counted_from_its_beginning() -> None:
    take = found(2)
    one, two = take(0), take(1)
    for _ in range(5):
        serve(two, "low", 7, 1, at=0.5)
    two.note()
    assert one.sample({"low": 5, "high": 0}, NONE, 1.0) is not None
    one.clear(1)
    two = take(1)
    serve(two, "low", 9, 1, at=1.5)
    two.note()
    demand = one.sample({"low": 1, "high": 0}, NONE, 2.0)
    assert demand is not None
    assert demand.backends["low"].firsts == (FirstToken(1.5, 9),)
    assert (demand.backends["low"].decoding, demand.backends["low"].held) == (1, 10)


def test_one_worker_plans_in_each_beat_whichever_asks_first() -> None:
    one, two = seats(2)
    asked = [(counts, 10.0 + BEAT_S * beat + late) for beat in range(5) for counts, late in ((one, 0), (two, 0.02))]
    answered = [counts.sample(NONE, NONE, now) is not None for counts, now in asked]
    assert answered == [True, False] * 5
    assert two.sample(NONE, NONE, 9.0) is not None  # a clock of another boot, which no sample may stop for ever


def test_it_holds_the_last_seconds() -> None:
    (one,) = seats(1)
    demand = None
    for beat in range(3 * SAMPLES):
        one.arrive(1, None, 5)
        demand = one.sample(NONE, NONE, BEAT_S * beat)
    assert demand is not None
    assert len(demand.arrivals) == SAMPLES
    assert [sample.total for sample in demand.arrivals] == list(range(2 * SAMPLES + 1, 3 * SAMPLES + 1))


def test_of_what_is_not_known_there_is_nothing_but_usual_answers() -> None:
    (one,) = seats(1)
    one.arrive(1, None, 0)  # a relayed request, whose tokens nobody counts
    demand = one.sample(NONE, NONE, 1.0)
    assert demand is not None
    assert not demand.prompts
    assert demand.answer_tokens == pytest.approx(UNKNOWN.mean)
    assert demand.backends["low"] == (0, 0, 0.0, 0, 0, 0, 0, (), 0, 0.0)


def test_what_one_engine_alone_could_serve_is_soon_forgotten() -> None:
    """A load test that pins its requests would else weigh on plans for as long as the gateway lives."""
    (one,) = seats(1)
    for _ in range(1000):
        one.arrive(1, "high", 5)
    shares = []
    for second in range(100):
        for _ in range(10):
            one.arrive(1, None, 5)
        demand = one.sample(NONE, NONE, float(second))
        assert demand is not None
        shares.append(demand.backends["high"].fixed_share)
    assert shares[0] == pytest.approx(1000 / 1010)
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.05


@pytest.mark.parametrize(
    ("reported", "known", "counted"),
    [
        ({}, {}, (0.0, 0.0)),
        ({"high": [(100, 0)]}, {}, (0.0, 0.0)),  # without the option a vLLM's usage looks like this
        ({"high": [(100, 60)]}, {"high": 0.6}, (0.6, 0.6)),
        ({"low": [(100, 0)], "high": [(100, 60)]}, {"high": 0.6}, (0.6, 0.6)),
        ({"low": [(100, 20)], "high": [(100, 60)]}, {"low": 0.2, "high": 0.6}, (0.2, 0.6)),
        ({"low": [(1000, 100)], "high": [(100, 60)] * 1000}, {"low": 0.1, "high": 0.6}, (0.1, 0.6)),
        ({"high": [(100, 0)] * 1000 + [(100, 90)] * 1000}, {"high": 0.9}, (0.9, 0.9)),  # older prompts fade
    ],
)
def test_what_engines_hold_of_prompts_is_that_of_all_workers_and_of_the_other_engine_where_one_is_silent(
    reported: dict[str, list[tuple[int, int]]], known: dict[str, float], counted: tuple[float, float]
) -> None:
    one, two = seats(2)
    for backend, prompts in reported.items():
        for counts in (one, two):
            use = NO_CACHE_USE
            for queried, found in prompts:
                use = use.add(queried, found)
            counts.flow.cache_use[backend] = use
    for counts in (one, two):
        counts.note()
    assert two.find_cached() == pytest.approx(known, abs=0.01)
    demand = two.sample(NONE, NONE, 1.0)
    assert demand is not None
    assert [demand.backends[name].cached for name in BACKENDS] == pytest.approx(counted, abs=0.01)
    one.clear(0)
    assert two.find_cached() == pytest.approx(known, abs=0.01)
