"""result.json read back is the result that was written; what is none says so."""

from collections.abc import Mapping
from dataclasses import replace

import orjson
import pytest

from loadtest.hardware import Hardware
from loadtest.plan import FULL
from loadtest.regret import Loss
from loadtest.result import Result
from loadtest.slo import Slo
from loadtest.stored import parse_result
from tests.loadtest.samples import make_result

GPU = Hardware(weights_gb=8.0, bandwidth_gb_s=3350.0)
CROSSING = {1: 1.2, 8: 1.1, 32: 1.05, 64: 0.9, 128: 0.6}


def encode(result: Result, **changes: object) -> bytes:
    return orjson.dumps(result.to_json() | changes)


@pytest.mark.parametrize("ratios", [CROSSING, {1: 1.2, 2: 0.8, 4: 1.2}, {1: 1.2, 2: 1.1}, {}])
def test_what_was_written_is_read(ratios: Mapping[int, float]) -> None:
    written = encode(make_result(ratios))
    assert encode(parse_result(written)) == written


def test_a_run_with_everything_that_may_be_set_is_read() -> None:
    result = make_result(CROSSING)
    result = replace(
        result,
        status="failed",
        failure="the gateway went away",
        applied={"version": 7, "up": 47},
        plan=replace(FULL, slo=Slo(ttft_s=0.5), budget_s=99.0, widest=None, hardware={"vllm": GPU}),
        losses=(Loss(64, "vllm", -0.01, {"triton": 3, "vllm": 61}),),
        subject=replace(result.subject, engines={"vllm": {"engine": "vllm", "tp": 2}}),
    )
    read = parse_result(encode(result))
    assert (read.plan, read.subject, read.cells) == (result.plan, result.subject, tuple(result.cells))
    assert (read.status, read.failure, read.applied) == (result.status, result.failure, result.applied)
    assert read.losses == result.losses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it is no result of a calibration"),
        (b"[]", "it is no result of a calibration"),
        (b'{"run": "a"}', "it is no result of a calibration"),
        (encode(make_result({}), schema="crossover.calibration/9"), "its schema is crossover.calibration/9, this"),
        (encode(make_result({}), cells=[{"backend": "triton"}]), "cells, 0, level: Field required"),
        (encode(make_result({}), duration_s="long"), "duration_s: Input should be a valid number"),
    ],
)
def test_what_is_no_result_is_refused_with_its_reason(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_result(text)
