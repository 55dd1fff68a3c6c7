"""Whether the embedded engines held the pace they were given, by a calibration's cells."""

import json

import pytest
from pydantic import TypeAdapter

from deploy import demo_output
from deploy.embedded import Pace
from engines.reference.pairs import load_pairs
from gateway.routing.policies import NodeModel

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


@pytest.mark.parametrize(("is_shared", "interference"), [(True, 1.4), (False, 0.0)])
def test_a_paced_pair_has_a_node_model(is_shared: bool, interference: float) -> None:
    described = json.loads(json.dumps(Pace(2, 213, "tp-dp").describe_node(290, is_shared=is_shared)))
    node = TypeAdapter(NodeModel).validate_python(described)
    assert node.low == load_pairs()["tp-dp"].engines["low"].slowed(2)
    assert (node.interference, node.prompt_tokens, node.answer_tokens) == (interference, 290, 213)
