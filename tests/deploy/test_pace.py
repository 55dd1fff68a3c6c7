"""Whether the embedded engines held the pace they were given, by a calibration's cells."""

import pytest

from deploy import demo_output
from deploy.embedded import Pace

PACE = Pace(10, 32)
LEVELS = (1, 8, 32, 64, 128)


def cells(*slow: tuple[str, int, float]) -> list[dict[str, object]]:
    """Cells of engines that hold the pace, but for those in `slow`: backend, level, share."""
    shares = {(backend, level): share for backend, level, share in slow}
    return [
        {"backend": name, "level": level, "throughput": PACE.throughput(name, level) * shares.get((name, level), 1)}
        for name in ("triton", "vllm")
        for level in LEVELS
    ]


def test_the_cell_that_fell_furthest_behind_is_named() -> None:
    share, cell = PACE.least_held(cells(("vllm", 8, 0.9), ("triton", 64, 0.7)))
    assert (round(share, 3), cell["backend"], cell["level"]) == (0.7, "triton", 64)


def test_levels_far_beyond_the_crossing_do_not_count() -> None:
    assert PACE.least_held(cells(("vllm", 128, 0.5)))[0] == pytest.approx(1)


@pytest.mark.parametrize(("share", "is_named"), [(1.0, False), (0.98, False), (0.8, True)])
def test_a_slow_demo_names_the_slow_engine(share: float, is_named: bool, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"crossover": {"throughput": {"point": 33.7}}, "cells": cells(("triton", 64, share))}
    demo_output.print_crossing(result, PACE)
    printed = capsys.readouterr().out
    assert "cross at 48.7; measured 33.7, -31%" in printed
    assert ("could not hold that pace: triton gave 80% of it at 64 in flight" in printed) == is_named
