"""`crossover bench` against an endpoint whose pace is known, and the open loop under it."""

import json
from itertools import pairwise
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner

from loadtest.arrivals import Arrivals, Kind
from loadtest.single import figures_of_answers
from loadtest.single_cli import bench
from loadtest.slo import Slo
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed
from tests.loadtest.samples import make_answer

STEADY = Speed(base_s=0.02, per_request_s=0.0)
# Requests 50 ms apart meet every phase of its steps: the median TTFT is about 30 ms, of which a late timer is nothing.
EASY = Speed(base_s=0.06, per_request_s=0.0)
SLOW = Speed(base_s=0.0, per_request_s=0.02)  # 50 tokens per second whatever is asked
SHORT = ("--tokens", "8", "--prompt-words", "5")


async def run(gateway: FakeGateway, *options: str) -> tuple[int, str]:
    """In a thread: the command has an event loop of its own, the gateway runs in this one."""
    window = () if "--requests" in options else ("--window", "1")
    arguments = ["--url", gateway.url, *SHORT, *window, *options]
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(bench, arguments))
    return done.exit_code, done.output


async def figures(gateway: FakeGateway, *options: str) -> dict[str, Any]:  # Any: JSON
    code, text = await run(gateway, *options, "--json")
    assert code == 0, text
    return dict(json.loads(text))


# Arrivals


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_as_many_are_due_as_the_rate_says(kind: Kind) -> None:
    due = Arrivals(50.0, None, kind, seed=3).within(200.0)
    assert len(due) == pytest.approx(10_000, rel=0.03)
    assert due == sorted(due)
    assert 0 < due[0] < due[-1] <= 200


def test_constant_arrivals_are_evenly_spaced_and_poisson_ones_are_not() -> None:
    constant = Arrivals(10.0, None, "constant").within(5.0)
    assert constant == pytest.approx([number / 10 for number in range(1, 51)])
    due = Arrivals(10.0, seed=1).within(500.0)
    gaps = [later - earlier for earlier, later in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.15)  # exponential


def test_a_ramp_has_its_rates_at_its_ends_and_their_mean_in_all() -> None:
    due = Arrivals(10.0, 90.0, "constant").within(10.0)
    assert len(due) == 500
    assert len([at for at in due if at < 1]) == pytest.approx(14, abs=1)
    assert len([at for at in due if at >= 9]) == pytest.approx(86, abs=1)


@pytest.mark.parametrize("rates", [(0.0, None), (-1.0, None), (1.0, 0.0), (float("inf"), None)])
def test_a_rate_that_is_none_is_refused(rates: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="rate is a number of requests per second above 0"):
        Arrivals(*rates)


# Figures


def test_latency_counts_from_when_a_request_was_due() -> None:
    answer = make_answer(5.5, [6.0, 6.1, 6.2])
    answer.due_at = 5.0
    found = figures_of_answers([answer], 4.0, 8.0, Slo(ttft_s=0.9))
    assert found.ttft_s.p50 == pytest.approx(1.0)
    assert found.e2e_s.p50 == pytest.approx(1.2)
    assert found.lag_s is not None
    assert found.lag_s.p50 == pytest.approx(0.5)
    assert found.tokens_per_s == pytest.approx(3 / 4)
    assert found.goodput == 0
    assert found.doubts[0].startswith("CLIENT-BOUND: requests left 500.0 ms late")


def test_requests_that_pile_up_are_told() -> None:
    answers = [make_answer(at / 10, [at / 10 + at / 20]) for at in range(100)]
    for answer in answers:
        answer.due_at = answer.started_at
    found = figures_of_answers(answers, 0.0, 10.0, None)
    assert any("does not keep up with this rate" in doubt for doubt in found.doubts)
    assert figures_of_answers(answers, 0.0, 10.0, None, is_ramp=True).doubts == ()


# The command


async def test_a_closed_loop_has_the_pace_and_the_level_of_the_endpoint() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--concurrency", "4", "--slo", "ttft=10")
        assert gateway.runs == set()  # not tagged: to the policy this is a user's load
    assert found["tokens_per_s"] == pytest.approx(4 / 0.02, rel=0.1)
    assert found["tpot_s"]["p50"] == pytest.approx(0.02, rel=0.1)
    assert found["in_flight"] == pytest.approx(4, rel=0.05)
    assert found["goodput"] == pytest.approx(found["requests_per_s"])


async def test_a_closed_loop_may_end_by_requests_that_its_window_held() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--concurrency", "4", "--requests", "14")
    answered = round(found["requests_per_s"] * found["window_s"])
    assert 14 <= answered <= 14 + 4
    assert found["in_flight"] == pytest.approx(4, rel=0.05)


@pytest.mark.alone  # a client that gets no CPU in time says so
async def test_an_open_loop_sends_at_its_rate_and_reuses_connections() -> None:
    async with FakeGateway(EASY, EASY) as gateway:
        found = await figures(gateway, "--rate", "20", "--arrivals", "constant")
        assert len(gateway.prompts["triton"]) == len(set(gateway.prompts["triton"]))
    assert found["offered"] == pytest.approx(20, abs=1)
    assert found["tpot_s"]["p50"] == pytest.approx(0.06, rel=0.1)
    assert found["in_flight"] == pytest.approx(20 * 8 * 0.06, rel=0.35)  # Little's law
    assert found["doubts"] == []


async def test_an_endpoint_that_falls_behind_shows_it_in_latencies_from_the_due_time() -> None:
    async with FakeGateway(SLOW, SLOW) as gateway:
        found = await figures(gateway, "--rate", "40", "--arrivals", "constant", "--window", "1.5")
    assert found["e2e_s"]["p50"] > 1.0
    assert any("does not keep up with this rate" in doubt for doubt in found["doubts"])


async def test_a_table_is_printed_for_people() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        code, text = await run(gateway, "--concurrency", "2", "--pin", "vllm", "--slo", "ttft=10")
        assert gateway.prompts["triton"] == []
    assert code == 0, text
    assert "2 in flight" in text
    assert "TTFT" in text
    assert "within ttft 10 s" in text


async def test_what_tokens_cost_is_told_where_gpus_and_price_are() -> None:
    priced = ("--gpu-price", "3.6 EUR", "--gpu-count", "2")
    async with FakeGateway(STEADY, STEADY) as gateway:
        code, text = await run(gateway, "--concurrency", "2", *priced)
        found = await figures(gateway, "--concurrency", "2", *priced)
        free = await figures(gateway, "--concurrency", "2")
    assert code == 0, text
    assert "million tokens per GPU-hour · " in text
    assert " EUR per million tokens" in text
    assert found["tokens_per_gpu_hour"] == pytest.approx(found["tokens_per_s"] * 3600 / 2)
    assert found["cost_per_million_tokens"] == pytest.approx(3.6e6 / found["tokens_per_gpu_hour"])
    assert (free["tokens_per_gpu_hour"], free["cost_per_million_tokens"]) == (None, None)


async def test_an_answer_that_ends_early_is_refused_unless_any_length_will_do() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(short_answer=5)) as gateway:
        code, text = await run(gateway, "--concurrency", "2")
        assert code == 3
        assert "UNEQUAL WORK: the endpoint returned" in text
    async with FakeGateway(STEADY, STEADY, Faults(short_answer=5)) as gateway:
        code, text = await run(gateway, "--concurrency", "2", "--any-length")
        assert code == 0, text
        assert all("ignore_eos" not in body for body in gateway.bodies)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "one of --concurrency and --rate"),
        (("--concurrency", "2", "--rate", "3"), "one of --concurrency and --rate"),
        (("--rate", "3", "--requests", "9"), "--requests: of a closed loop"),
        (("--rate", "0"), "the rate is a number of requests per second above 0"),
        (("--concurrency", "2", "--slo", "itl=1"), "limits are ttft, tpot and e2e"),
        (("--concurrency", "2", "--gpu-price", "2"), "how many GPUs it is for is told by --gpu-count"),
        (("--concurrency", "2", "--gpu-price", "dear"), "dear: an amount above 0"),
    ],
)
async def test_bad_arguments_are_named(options: tuple[str, ...], message: str) -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        code, text = await run(gateway, *options)
    assert code == 2
    assert message in text


def test_no_endpoint_is_one_line() -> None:
    done = CliRunner().invoke(bench, ["--url", "http://127.0.0.1:9", "--concurrency", "1"])
    assert done.exit_code == 2
    assert done.output.startswith("Error: cannot connect to http://127.0.0.1:9")
