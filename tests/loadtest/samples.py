"""Answers, cells and results as tests need them: everything usual unless a test says otherwise."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.results.cell import Cell
from loadtest.results.checks import review
from loadtest.results.percentiles import Percentiles
from loadtest.results.plan import QUICK
from loadtest.results.result import Result, find_crossings, find_threshold, is_resolved
from loadtest.results.system import SystemUnderTest

CROSSING = {1: 1.2, 8: 1.1, 32: 1.05, 64: 0.9, 128: 0.6}  # throughput ratios that cross near 40
SYSTEM = SystemUnderTest("toy", "triton", "vllm", {"kind": "threshold", "up": 48, "down": 40}, {"version": "1.2.3"})

CELL = Cell(
    backend="triton",
    level=1,
    pair=0,
    window_s=10.0,
    throughput=100.0,
    requests=50,
    ttft_s=Percentiles(50, 0.02, 0.03),
    tpot_s=Percentiles(50, 0.01, 0.02),
    e2e_s=Percentiles(50, 0.34, 0.4),
    prompt_tokens=20.0,
    in_flight=1.0,
    fill=1.0,
    evenness=0.95,
    phase_order=0.1,
    tokens_per_chunk=1.0,
    counted_by="usage",
    client_cpu=0.05,
    loop_lag_p99_s=0.001,
    loop_lag_max_s=0.002,
    machine_load=0.3,
)


def make_answer(started_at: float, times: Sequence[float], prompt_tokens: int = 7) -> StreamedAnswer:
    """A complete answer of one token per time, counted by the server."""
    return StreamedAnswer(
        started_at=started_at,
        finished_at=times[-1],
        is_complete=True,
        status=200,
        backend="triton",
        times=list(times),
        counts=list(range(1, len(times) + 1)),
        finish_reason="length",
        prompt_tokens=prompt_tokens,
        completion_tokens=len(times),
    )


def make_pair(level: int, ratio: float, number: int, low_first: bool = True) -> list[Cell]:
    """Both cells of a pair in which triton has `ratio` times vllm's throughput, in the order measured."""
    usual, rate = replace(CELL, level=level, pair=number, in_flight=float(level)), 100.0 * level
    e2e_s, tpot_s = Percentiles(50, 0.34 / ratio), Percentiles(50, 0.01 / ratio)
    low = replace(usual, throughput=ratio * rate, e2e_s=e2e_s, tpot_s=tpot_s)
    cells = [low, replace(usual, backend="vllm", throughput=rate)]
    return cells if low_first else cells[::-1]


def make_cells(ratios: Mapping[int, float], repeats: int = 2, scatter: float = 0.0002) -> list[Cell]:
    """Pairs in both orders at every level, each a little off: by `scatter` up in one repeat and down in the next."""
    cells = []
    for repeat in range(repeats):
        for place, (level, ratio) in enumerate(ratios.items()):
            off = math.exp(scatter * (-1) ** (repeat + place))
            cells += make_pair(level, ratio * off, repeat * len(ratios) + place, low_first=not repeat % 2)
    return cells


def make_result(ratios: Mapping[int, float], scatter: float = 0.0002) -> Result:
    """A finished run that measured these throughput ratios, two pairs per level."""
    plan = replace(QUICK, levels=tuple(ratios) or QUICK.levels)
    cells = make_cells(ratios, scatter=scatter)
    findings = find_crossings(cells, SYSTEM, plan)
    threshold = find_threshold(findings["throughput"], plan)
    return Result(
        run="20260101T000000Z-abcd",
        status="complete" if is_resolved(findings["throughput"], threshold) else "unresolved",
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=100.0,
        client={"crossover": "0.1.0"},
        system=SYSTEM,
        plan=plan,
        cells=cells,
        checks=review(cells, 100, SYSTEM.low),
        findings=findings,
        threshold=threshold,
    )
