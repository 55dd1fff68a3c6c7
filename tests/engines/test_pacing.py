"""The pacing model as tables and in virtual time; no engine, no clock, no event loop."""

import heapq
import math
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from engines.reference.curve import Curve, Level, load_curve, true_crossing
from engines.reference.pacing import Pacer
from engines.reference.shared_gpus import SharedGPUs

FLAT = Curve("flat", (Level(1, 1.0, 0.1), Level(4, 1.0, 0.1)))
RISING = Curve("rising", (Level(1, 1.0, 0.1), Level(4, 3.0, 0.3), Level(16, 4.0, 0.4)))


@pytest.mark.parametrize(
    ("requests", "ttft_s", "itl_s"),
    [(1, 1.0, 0.1), (2, 2.0, 0.2), (4, 3.0, 0.3), (8, 3.5, 0.35), (16, 4.0, 0.4), (64, 5.0, 0.5)],
)
def test_curve_is_linear_in_log2_of_requests_also_beyond_the_data(requests: int, ttft_s: float, itl_s: float) -> None:
    assert RISING.ttft_s(requests) == pytest.approx(ttft_s)
    assert RISING.itl_s(requests) == pytest.approx(itl_s)


@pytest.mark.parametrize("tokens", [16, 256])
def test_the_pair_crosses_once_between_32_and_64_in_flight(tokens: int) -> None:
    low, high = load_curve("trtllm").scaled(1, tokens), load_curve("vllm").scaled(1, tokens)
    crossing = true_crossing(load_curve("trtllm"), load_curve("vllm"), tokens)
    assert 32 < crossing < 64
    assert low.throughput(crossing, tokens) == pytest.approx(high.throughput(crossing, tokens), rel=1e-9)
    assert low.throughput(crossing - 4, tokens) > high.throughput(crossing - 4, tokens)
    assert low.throughput(crossing + 4, tokens) < high.throughput(crossing + 4, tokens)


def test_curves_that_do_not_cross_have_no_crossing() -> None:
    with pytest.raises(ValueError, match="cross 0 times"):
        true_crossing(load_curve("vllm"), load_curve("vllm").scaled(2, 256), 256)


def test_due_times_follow_from_due_times_however_late_one_looks() -> None:
    pacer = Pacer(FLAT, capacity=4)
    pacer.arrive("a", 0.0)
    feed(pacer, "a", 5)
    assert pacer.next_due() == pytest.approx(1.0)
    assert list(pacer.advance(0.999)) == []
    assert list(pacer.advance(1.07)) == ["a"]
    assert pacer.next_due() == pytest.approx(1.1)
    assert list(pacer.advance(1.35)) == ["a"] * 3
    assert pacer.next_due() == pytest.approx(1.4)
    assert pacer.late == 0


def test_others_speed_up_when_a_request_leaves() -> None:
    pacer = Pacer(RISING, capacity=4)
    pacer.arrive("a", 0.0)  # alone: due at 1
    pacer.arrive("b", 0.5)  # second: due at 0.5 + 2
    feed(pacer, "a", 9, is_complete=False)
    feed(pacer, "b", 9, is_complete=False)
    assert list(pacer.advance(1.0)) == ["a"]
    assert pacer.next_due() == pytest.approx(1.2)
    pacer.leave("b", 1.1)
    assert list(pacer.advance(1.2)) == ["a"]
    assert pacer.next_due() == pytest.approx(1.3)


def test_a_token_computed_late_leaves_at_once_and_delays_no_later_one() -> None:
    pacer = Pacer(FLAT, capacity=4)
    pacer.arrive("a", 0.0)
    assert list(pacer.advance(1.25)) == []
    assert pacer.late == 1
    feed(pacer, "a", 4)
    assert list(pacer.advance(1.25)) == ["a"] * 3  # due at 1.0, 1.1 and 1.2
    assert pacer.next_due() == pytest.approx(1.3)


def test_beyond_capacity_requests_wait_in_order_and_start_when_one_leaves() -> None:
    pacer = Pacer(FLAT, capacity=1)
    for name in "abc":
        pacer.arrive(name, 0.0)
    feed(pacer, "a", 1)
    assert (pacer.running, pacer.waiting) == (1, 2)
    assert pacer.short_of(1) == []
    assert list(pacer.advance(1.5)) == ["a"]
    assert pacer.short_of(1) == ["b"]
    assert pacer.next_due() == pytest.approx(2.0)  # admitted when a's last token was due, not when somebody looked
    pacer.leave("c", 1.5)
    assert (pacer.running, pacer.waiting) == (1, 0)


@dataclass
class Beside:
    """Another engine on the same GPUs, and the step times that it received."""

    step_s: float
    noted: list[float] = field(default_factory=list)

    def note(self, step_s: float) -> None:
        self.noted.append(step_s)

    def others_s(self) -> float:
        return self.step_s


def test_beside_an_engine_that_works_a_step_takes_the_sum_of_both() -> None:
    beside = Beside(0.3)
    pacer = Pacer(FLAT, capacity=4, neighbours=beside)
    pacer.arrive("a", 0.0)
    feed(pacer, "a", 9, is_complete=False)
    assert pacer.next_due() == pytest.approx(4.0)  # 1.0, in steps of 0.1 + 0.3
    assert list(pacer.advance(4.0)) == ["a"]
    assert pacer.next_due() == pytest.approx(4.4)
    beside.step_s = 0.0
    assert list(pacer.advance(4.4)) == ["a"]
    assert pacer.next_due() == pytest.approx(4.5)
    pacer.leave("a", 4.45)
    assert beside.noted == [0.1, 0.0]


def test_engines_learn_of_each_others_steps_and_not_of_the_dead(tmp_path: Path) -> None:
    path = tmp_path / "gpus"
    one, two = SharedGPUs(path, 0), SharedGPUs(path, 1)
    one.note(0.25)
    assert (one.others_s(), two.others_s()) == (0.0, 0.25)
    program = (
        f"import pathlib, {SharedGPUs.__module__} as gpus; gpus.SharedGPUs(pathlib.Path({str(path)!r}), 2).note(9)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    two.note(0.5)
    assert (one.others_s(), two.others_s()) == (0.5, 0.25)


def test_a_cancelled_request_is_released_no_more() -> None:
    pacer = Pacer(FLAT, capacity=2)
    pacer.arrive("a", 0.0)
    feed(pacer, "a", 3)
    pacer.leave("a", 0.5)
    pacer.leave("a", 0.5)
    assert list(pacer.advance(9.0)) == []
    assert repr(pacer) == "<Pacer flat running=0 waiting=0 late=0>"


@pytest.mark.parametrize("tokens", [16, 64])
def test_a_closed_loop_of_the_pacer_itself_crosses_where_the_formula_puts_it(tokens: int) -> None:
    low, high = load_curve("trtllm"), load_curve("vllm")
    crossing = true_crossing(low, high, tokens)
    for clients in (round(crossing * 0.7), round(crossing), round(crossing * 1.4)):
        ratio = closed_loop(low, clients, tokens) / closed_loop(high, clients, tokens)
        expected = low.scaled(1, tokens).throughput(clients, tokens) / high.scaled(1, tokens).throughput(
            clients, tokens
        )
        assert ratio == pytest.approx(expected, rel=0.01)


def closed_loop(curve: Curve, clients: int, tokens: int) -> float:
    """Tokens per virtual second of `clients` that each send the next request when an answer's last token is out."""
    curve = curve.scaled(1, tokens)
    pacer, ids = Pacer(curve, capacity=512), count()
    left: dict[str, int] = {}
    answer_s = curve.answer_s(clients, tokens)
    arrivals = [answer_s * client / clients for client in range(clients)]
    heapq.heapify(arrivals)
    window, released, now = (3 * answer_s, 7 * answer_s), 0, 0.0
    while now < window[1]:
        now = min(pacer.next_due(), arrivals[0] if arrivals else math.inf)
        for name in pacer.advance(now):
            left[name] -= 1
            released += window[0] <= now < window[1]
            if not left[name]:
                heapq.heappush(arrivals, now)
        while arrivals and arrivals[0] <= now:
            name = str(next(ids))
            pacer.arrive(name, heapq.heappop(arrivals))
            left[name] = tokens
            feed(pacer, name, tokens)
    return released / (window[1] - window[0])


def feed(pacer: Pacer, name: str, tokens: int, *, is_complete: bool = True) -> None:
    for position in range(1, tokens + 1):
        pacer.computed(name, is_last=is_complete and position == tokens)
