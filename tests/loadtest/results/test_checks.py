from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.decide.soundness import Check
from loadtest.results.cell import Cell
from loadtest.results.checks import find_flaw, review
from loadtest.results.hardware import Declared, Hardware
from tests.loadtest.samples import CELL, make_cells, make_pair


def check(name: str, cells: Sequence[Cell], answers: int = 0, hardware: Declared | None = None) -> Check:
    (found,) = [each for each in review(cells, answers, "triton", hardware=hardware) if each.name == name]
    return found


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


BUNCHED, PAUSED = {"phase_order": 0.9}, {"fill": 0.5}


def spoil(cells: Sequence[Cell], figures: dict[str, float]) -> list[Cell]:
    return [replace(cell, **figures) for cell in cells]  # type: ignore[arg-type]  # deliberately any field


@pytest.mark.parametrize(
    ("figures", "name", "status", "message"),
    [
        (BUNCHED, "no lockstep", "failed", "LOCKSTEP R=0.90"),
        ({"client_cpu": 0.9}, "client headroom", "failed", "CLIENT-BOUND at c=16"),
        ({"loop_lag_p99_s": 0.02}, "client headroom", "failed", "CLIENT-BOUND at c=16"),
        (PAUSED, "steady load", "failed", "NOT STEADY"),
        ({"machine_load": 4.5}, "quiet machine", "warning", "BUSY MACHINE"),
        ({"foreign": 0.2}, "steady load", "failed", "FOREIGN LOAD: 20.0% of the requests at "),
    ],
)
def test_unsound_cells_are_found(figures: dict[str, float], name: str, status: str, message: str) -> None:
    sound = make_pair(16, 1.1, 0)
    assert check(name, sound).status == "passed"
    found = check(name, spoil(sound, figures))
    assert found.status == status
    assert found.message.startswith(message)
    assert found.message.endswith("And in 1 more.")


@pytest.mark.parametrize(("figures", "name"), [(BUNCHED, "no lockstep"), (PAUSED, "steady load")])
def test_a_few_unsound_cells_are_only_a_warning(figures: dict[str, float], name: str) -> None:
    cells = make_cells({16: 1.2, 32: 1.1, 64: 1.0, 128: 0.9})  # sixteen: one is less than a tenth, two are more
    for flawed, status in ((1, "warning"), (2, "failed")):
        assert check(name, [*spoil(cells[:flawed], figures), *cells[flawed:]]).status == status


LOW, HIGH = make_pair(16, 1.1, 0)
CAPPED = [replace(cell, throughput=min(cell.throughput, 1700.0)) for cell in make_cells({8: 1.1, 32: 1.0, 64: 1.0})]


@pytest.mark.parametrize(
    ("name", "cells", "status", "message"),
    [
        ("no lockstep", spoil(make_pair(4, 1.1, 0), BUNCHED), "passed", ""),  # few streams are bunched by chance
        (
            "chunking",
            [replace(LOW, tokens_per_chunk=1.5), HIGH],
            "warning",
            "CHUNKING DIFFERS: triton 1.50 vs",
        ),
        ("gateway headroom", CAPPED, "warning", "GATEWAY-BOUND: both backends plateau within 3% at 1700 tok/s"),
    ],
)
def test_cells_are_compared_with_each_other(name: str, cells: Sequence[Cell], status: str, message: str) -> None:
    found = check(name, cells)
    assert (found.status, found.message.startswith(message)) == (status, True)


@pytest.mark.parametrize("name", ["equal work", "routing"])
def test_nothing_is_claimed_of_answers_where_there_were_none(name: str) -> None:
    assert [check(name, make_pair(16, 1.1, 0), answers).status for answers in (0, 1)] == ["note", "passed"]


@pytest.mark.parametrize(
    ("shares", "status", "message"),
    [
        ((0.4, 0.0), "failed", "PREFIX CACHE: 40% of prompt tokens cached on triton."),
        ((0.0, 0.005), "passed", "at most 0.5%"),
        ((0.0, None), "note", "answers of vllm do not report"),
    ],
)
def test_prompts_that_came_from_a_cache_are_refused(
    shares: tuple[float, float | None], status: str, message: str
) -> None:
    cells = [replace(cell, cached=share) for cell, share in zip(make_pair(16, 1.1, 0), shares, strict=True)]
    found = check("cold cache", cells)
    assert (found.status, message in found.message) == (status, True)


@pytest.mark.parametrize(
    ("weights_gb", "status", "message"),
    [
        (20.0, "passed", "triton c1 decode is 50% of bandwidth roofline"),
        (14.0, "warning", "LAUNCH-BOUND? triton c1 decode is 35%"),
        (8.0, "failed", "LAUNCH-BOUND? triton c1 decode is 20%"),
        (60.0, "failed", "IMPOSSIBLE: triton c1 decode reads 150%"),
    ],
)
def test_a_time_per_token_is_compared_with_the_memorys_bandwidth(weights_gb: float, status: str, message: str) -> None:
    """In ten milliseconds 4,000 GB/s are 40 GB."""
    hardware = {"triton": Hardware(weights_gb=weights_gb, bandwidth_gb_s=2000, gpus=2)}
    found = check("physics", make_pair(1, 1.0, 0), hardware=hardware)
    assert (found.status, found.message.startswith(message)) == (status, True)
    # Where a token takes as long alone as among 32, the host is the limit.
    checks = review(make_cells({1: 1.0, 32: 1.0}), 0, "triton", hardware=hardware)
    assert [each.status for each in checks if each.name == "physics"] == [status, "warning"]


@pytest.mark.parametrize(("change", "status"), [(1.0, "passed"), (1.05, "failed")])
def test_a_backend_that_differs_from_itself_is_refused(change: float, status: str) -> None:
    nulls = [replace(CELL, pair=900, is_null=True, throughput=100.0 * factor) for factor in (1.0, change)]
    null = check("null", [*nulls, *make_cells({1: 1.2, 8: 1.1, 64: 0.9}, repeats=4, scatter=0.002)])
    assert null.status == status
    assert ("NOT NULL" in null.message) is (status == "failed")
