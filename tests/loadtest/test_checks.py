from collections.abc import Callable
from dataclasses import replace

import pytest

from loadtest.answer import Answer
from loadtest.cell import Cell
from loadtest.checks import find_flaw, review
from loadtest.errors import Misrouted, RequestFailed, UnequalWork, Untrusted
from loadtest.hardware import Hardware
from loadtest.judge import Judge
from loadtest.work import Asked, Place
from tests.loadtest.samples import CELL, make_answer, make_cells, make_pair

PLACE = Place(0, 0, 0)
ASKED = Asked("triton", PLACE, 4)


def whole_answer() -> Answer:
    return make_answer(0.0, [1.0, 2.0, 3.0, 4.0])


def test_the_work_asked_for_is_accepted_and_counted() -> None:
    judge = Judge()
    judge.accept(whole_answer(), ASKED)
    assert (judge.answers, judge.tokens) == (1, 4)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("completion_tokens", 3, UnequalWork, "UNEQUAL WORK: triton returned 3 of 4 tokens"),
        ("completion_tokens", 5, UnequalWork, "UNEQUAL WORK: triton returned 5 of 4 tokens"),
        ("finish_reason", "stop", UnequalWork, "finish=stop"),
        ("backend", "vllm", Misrouted, "pinned to triton was served by vllm"),
        ("backend", None, Misrouted, "no x-crossover-backend header"),
        ("error", "engine died", RequestFailed, "triton answered an error: engine died"),
        ("finish_reason", None, RequestFailed, "without a finish_reason"),
        ("completion_tokens", None, RequestFailed, "NO USAGE"),
        ("prompt_tokens", None, RequestFailed, "NO USAGE"),
    ],
)
def test_anything_else_is_refused(field: str, value: object, error: type[Untrusted], message: str) -> None:
    answer = whole_answer()
    setattr(answer, field, value)
    with pytest.raises(error, match=message) as refused:
        Judge().accept(answer, ASKED)
    assert refused.value.exit_code == 3


def test_the_same_prompt_must_be_as_many_tokens_on_both_backends() -> None:
    judge = Judge()
    judge.accept(make_answer(0.0, [1.0], prompt_tokens=7), Asked("triton", PLACE, 1))
    other = make_answer(0.0, [1.0], prompt_tokens=8)
    other.backend = "vllm"
    with pytest.raises(UnequalWork, match="was 8 tokens on vllm and 7 on triton"):
        judge.accept(other, Asked("vllm", PLACE, 1))


@pytest.mark.parametrize(
    ("flawed", "message"),
    [
        (replace(CELL, level=8, in_flight=7.0), "held only 7.0 in flight"),
        (replace(CELL, fill=0.6), "generated 40% less"),
        (replace(CELL, fill=1.2), "generated 20% more"),
        (replace(CELL, level=8, in_flight=8.0, evenness=0.3), "only 30% of the usual in one fifth"),
        (replace(CELL, loop_lag_max_s=1.2), "held up for 1.20 s"),
        (replace(CELL, foreign=0.051), "5.1% of the requests at triton c=1 were others'"),
    ],
)
def test_a_cell_with_a_pause_is_not_steady(flawed: Cell, message: str) -> None:
    assert find_flaw(CELL) is None
    assert find_flaw(replace(CELL, foreign=0.05)) is None
    assert message in (find_flaw(flawed) or "")


def bunch(cell: Cell) -> Cell:
    return replace(cell, phase_order=0.9)


def burden(cell: Cell) -> Cell:
    return replace(cell, client_cpu=0.9)


def crowd(cell: Cell) -> Cell:
    return replace(cell, machine_load=4.5)


def pause(cell: Cell) -> Cell:
    return replace(cell, fill=0.5)


def delay(cell: Cell) -> Cell:
    return replace(cell, loop_lag_p99_s=0.02)


def share(cell: Cell) -> Cell:
    return replace(cell, foreign=0.2)


@pytest.mark.parametrize(
    ("spoil", "name", "status", "message"),
    [
        (bunch, "no lockstep", "failed", "LOCKSTEP R=0.90"),
        (burden, "client headroom", "failed", "CLIENT-BOUND at c=16"),
        (delay, "client headroom", "failed", "CLIENT-BOUND at c=16"),
        (pause, "steady load", "failed", "NOT STEADY"),
        (crowd, "quiet machine", "warning", "BUSY MACHINE"),
        (share, "steady load", "failed", "FOREIGN LOAD: 20.0% of the requests at "),
    ],
)
def test_review_tells_what_is_unsound(spoil: Callable[[Cell], Cell], name: str, status: str, message: str) -> None:
    sound = make_pair(16, 1.1, 0)
    found = {check.name: check for check in review(list(map(spoil, sound)), Judge(), "triton")}
    assert {check.status for check in review(sound, Judge(), "triton") if check.name == name} == {"passed"}
    assert found[name].status == status
    assert found[name].message.startswith(message)
    assert found[name].message.endswith("And in 1 more.")


def test_review_warns_where_backends_bundle_tokens_differently() -> None:
    low, high = make_pair(16, 1.1, 0)
    checks = review([replace(low, tokens_per_chunk=1.5), high], Judge(), "triton")
    assert "CHUNKING DIFFERS: triton 1.50 vs vllm 1.00" in next(c.message for c in checks if c.name == "chunking")


def test_few_streams_bunched_by_chance_are_no_lockstep() -> None:
    checks = review(list(map(bunch, make_pair(4, 1.1, 0))), Judge(), "triton")
    assert next(check.status for check in checks if check.name == "no lockstep") == "passed"


@pytest.mark.parametrize("name", ["equal work", "routing"])
def test_review_claims_of_answers_only_where_there_were_some(name: str) -> None:
    none, one = Judge(), Judge()
    one.accept(whole_answer(), ASKED)
    statuses = [
        next(check.status for check in review(make_pair(16, 1.1, 0), judge, "triton") if check.name == name)
        for judge in (none, one)
    ]
    assert statuses == ["note", "passed"]


@pytest.mark.parametrize(("spoil", "name"), [(bunch, "no lockstep"), (pause, "steady load")])
def test_a_few_cells_that_are_unsound_are_only_warned_of(spoil: Callable[[Cell], Cell], name: str) -> None:
    cells = make_cells({16: 1.2, 32: 1.1, 64: 1.0, 128: 0.9})  # sixteen: one is less than a tenth, two are more
    for flawed, status in ((1, "warning"), (2, "failed")):
        checks = review([*map(spoil, cells[:flawed]), *cells[flawed:]], Judge(), "triton")
        assert next(check.status for check in checks if check.name == name) == status


@pytest.mark.parametrize(
    ("shares", "status", "message"),
    [
        ((0.4, 0.0), "failed", "PREFIX CACHE: 40% of prompt tokens cached on triton."),
        ((0.0, 0.005), "passed", "at most 0.5%"),
        ((0.0, None), "note", "answers of vllm do not tell"),
    ],
)
def test_prompts_that_came_from_a_cache_are_told(shares: tuple[float, float | None], status: str, message: str) -> None:
    cells = [replace(cell, cached=share) for cell, share in zip(make_pair(16, 1.1, 0), shares, strict=True)]
    (check,) = [check for check in review(cells, Judge(), "triton") if check.name == "cold cache"]
    assert check.status == status
    assert message in check.message


@pytest.mark.parametrize(
    ("weights_gb", "status", "message"),
    [
        (20.0, "passed", "triton c1 decode is 50% of bandwidth roofline"),
        (14.0, "warning", "LAUNCH-BOUND? triton c1 decode is 35%"),
        (8.0, "failed", "LAUNCH-BOUND? triton c1 decode is 20%"),
        (60.0, "failed", "IMPOSSIBLE: triton c1 decode reads 150%"),
    ],
)
def test_a_time_per_token_is_held_against_the_memory(weights_gb: float, status: str, message: str) -> None:
    """Ten milliseconds at 4,000 GB/s are 40 GB."""
    hardware = {"triton": Hardware(weights_gb=weights_gb, bandwidth_gb_s=2000, gpus=2)}
    checks = review(make_pair(1, 1.0, 0), Judge(), "triton", hardware=hardware)
    (check,) = [check for check in checks if check.name == "physics"]
    assert (check.status, check.message.startswith(message)) == (status, True)


def test_a_gpu_that_takes_no_longer_for_many_is_bound_by_its_host() -> None:
    hardware = {"triton": Hardware(weights_gb=20, bandwidth_gb_s=4000)}
    checks = review(make_cells({1: 1.0, 32: 1.0}), Judge(), "triton", hardware=hardware)
    assert [check.status for check in checks if check.name == "physics"] == ["passed", "warning"]


def test_two_backends_that_end_at_one_rate_point_at_the_gateway() -> None:
    cells = [replace(cell, throughput=min(cell.throughput, 1700.0)) for cell in make_cells({8: 1.1, 32: 1.0, 64: 1.0})]
    (check,) = [check for check in review(cells, Judge(), "triton") if check.name == "gateway headroom"]
    assert check.status == "warning"
    assert check.message.startswith("GATEWAY-BOUND: both backends plateau within 3% at 1700 tok/s")


@pytest.mark.parametrize(("change", "status"), [(1.0, "passed"), (1.05, "failed")])
def test_a_backend_that_differs_from_itself_is_told(change: float, status: str) -> None:
    nulls = [replace(CELL, pair=900, is_null=True, throughput=100.0 * factor) for factor in (1.0, change)]
    cells = [*nulls, *make_cells({1: 1.2, 8: 1.1, 64: 0.9}, repeats=4, scatter=0.002)]
    (null,) = [check for check in review(cells, Judge(answers=100), "triton") if check.name == "null"]
    assert null.status == status
    assert ("NOT NULL" in null.message) is (status == "failed")
