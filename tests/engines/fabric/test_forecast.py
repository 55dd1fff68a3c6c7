"""Steps and the tensor parallelism that they speak for, on curves made up for it."""

import pytest

from engines.fabric.curve import Curve, Timing
from engines.fabric.datasheet import DataSheet, find_data_sheet
from engines.fabric.forecast import Node, Row, find_degrees, find_spans, find_step, forecast, list_decode, list_prefill
from engines.fabric.model import Model, Weights

H100 = find_data_sheet("NVIDIA H100 80GB HBM3")
FP8_8B = Model("8b", 4096, 32, 32, 2, Weights(1, 8e9, 8.5e9, "made up"))


def make_curve(ranks: int, latency_s: float, gb_s: float = 300) -> Curve:
    sizes = [1 << power for power in range(10, 31)]
    times = [latency_s + size / (gb_s * 1e9) for size in sizes]
    return Curve(ranks, "graph", [Timing(size, t, t, t, 1) for size, t in zip(sizes, times, strict=True)])


def make_node(*curves: Curve, memory_bytes: float | None = 80e9, sheet: DataSheet = H100) -> Node:
    by_tp = {curve.ranks: curve for curve in curves}
    return Node(max(by_tp), sheet, memory_bytes, by_tp, by_tp)


def test_a_step_reads_its_share_of_the_weights_and_sums_twice_a_layer() -> None:
    step = find_step(FP8_8B, H100, 1, 2, make_curve(2, 10e-6))
    assert step.weights_s == pytest.approx(8e9 / (2 * 3350e9))
    assert step.reduce_s == pytest.approx(2 * 32 * 10e-6, rel=0.01)  # 8 KiB hardly weigh
    assert step.total_s == pytest.approx(step.weights_s + step.reduce_s)


def test_many_tokens_are_bound_by_arithmetic() -> None:
    step = find_step(FP8_8B, H100, 4096, 2, make_curve(2, 10e-6))
    compute_s = 2 * 8e9 * 4096 / (2 * 1979e12)
    assert step.compute_s == pytest.approx(compute_s)
    assert step.total_s == pytest.approx(compute_s + step.reduce_s)
    assert step.reduce_s == pytest.approx(64 * (10e-6 + 4096 * 4096 * 2 / 300e9), rel=0.01)


def test_cheap_sums_speak_for_all_gpus_and_dear_ones_for_one() -> None:
    cheap = list_decode(FP8_8B, make_node(make_curve(2, 1e-6), make_curve(4, 1e-6)), [1, 2, 4])
    dear = list_decode(FP8_8B, make_node(make_curve(2, 200e-6), make_curve(4, 200e-6)), [1, 2, 4])
    assert cheap[0].best == 4
    assert {row.best for row in dear} == {1}


def test_decode_shares_the_requests_among_replicas_on_the_same_gpus() -> None:
    rows = list_decode(FP8_8B, make_node(make_curve(2, 1e-6), make_curve(4, 1e-6)), [1, 2, 4])
    [row] = [row for row in rows if row.load == 64]
    assert [step.tokens for step in row.steps] == [16, 32, 64]


def test_a_hair_is_no_reason_to_share_a_model_out() -> None:
    weights_s = 8e9 / 3350e9
    latency_s = weights_s / 2 * 0.92 / 64  # TP 2 gains 4 %
    assert list_decode(FP8_8B, make_node(make_curve(2, latency_s, gb_s=1e9)), [1, 2])[0].best == 1


def test_a_prompt_alone_wants_all_gpus_and_many_prompts_want_one_each() -> None:
    rows = list_prefill(FP8_8B, make_node(make_curve(2, 10e-6), make_curve(4, 10e-6)), [1, 2, 4])
    assert (rows[-1].best, rows[-1].most) == (4, 1)


def test_degrees_that_a_model_cannot_have_are_left_out_with_a_reason() -> None:
    model = Model("m", 1024, 4, 6, 2, Weights(2, 200e9, 210e9, "made up"))
    degrees, reasons = find_degrees(model, make_node(make_curve(2, 1e-6), make_curve(4, 1e-6)))
    assert degrees == []
    assert reasons == [
        "TP 1: 210.0 of 80.0 GB are weights, less than 10% are left for the KV cache",
        "TP 2: 105.0 of 80.0 GB are weights, less than 10% are left for the KV cache",
        "TP 4: 6 attention heads cannot be shared by 4",
    ]


def test_prefill_is_left_out_where_arithmetic_is_not_known() -> None:
    node = make_node(make_curve(2, 1e-6), sheet=DataSheet(memory=1e12), memory_bytes=None)
    found = forecast(FP8_8B, node)
    assert (list(found.prefill), len(found.decode) > 0) == ([], True)


def test_neighbouring_loads_with_one_choice_are_one_span() -> None:
    rows = [Row(load, (), 0) for load in (1, 2, 4, 8)]
    assert find_spans(rows, [4, 4, 2, 4]) == [(1, 2, 4), (4, 4, 2), (8, 8, 4)]
