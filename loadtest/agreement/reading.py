"""What each tester says of a run, out of the file that it wrote. Pure.

In: the bytes of `crossover bench --json`, of vLLM's --save-result, of AIPerf's profile_export_aiperf.json. Out: a
Reading, or BenchError if the tester did other work than it was given. How each defines its figures: docs/loadtest.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.agreement.workload import Pace, Workload
from loadtest.bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class Reading:
    """Output tokens per second, and medians over requests in seconds."""

    throughput: float
    ttft_s: float
    tpot_s: float


def read_crossover(content: bytes, workload: Workload) -> Reading:
    """Every answer's length was checked by `crossover bench` itself; that the window held the work is checked here."""
    figures = _parse(content, "crossover bench")
    answered = round(figures["requests_per_s"] * figures["window_s"])
    if answered < workload.requests:
        raise _other_work("crossover bench", "requests answered", answered, workload.requests)
    return Reading(figures["tokens_per_s"], figures["ttft_s"]["p50"], figures["tpot_s"]["p50"])


def read_e2e_s(content: bytes) -> float:
    """Median time of a whole request, from `crossover bench --json`."""
    return float(_parse(content, "crossover bench")["e2e_s"]["p50"])


def read_vllm(content: bytes, workload: Workload) -> Reading:
    result = _parse(content, "vllm bench serve")
    _expect("vllm bench serve", "requests answered", result["completed"], workload.requests)
    _expect("vllm bench serve", "tokens", result["total_output_tokens"], workload.requests * workload.tokens)
    return Reading(result["output_throughput"], result["median_ttft_ms"] / 1000, result["median_tpot_ms"] / 1000)


def read_aiperf(content: bytes, workload: Workload) -> Reading:
    result = _parse(content, "AIPerf")
    _expect("AIPerf", "requests answered", result["request_count"]["avg"], workload.requests)
    _expect("AIPerf", "tokens", result["total_osl"]["avg"], workload.requests * workload.tokens)
    return Reading(
        throughput=_convert(result["output_token_throughput"], "avg", {"tokens/sec": 1.0}),
        ttft_s=_convert(result["time_to_first_token"], "p50", {"ms": 1e-3}),
        tpot_s=_convert(result["inter_token_latency"], "p50", {"ms": 1e-3}),
    )


def expected(pace: Pace, workload: Workload) -> Reading:
    """What a tester would read that itself takes no time."""
    return Reading(
        throughput=workload.concurrency * workload.tokens / pace.e2e_s(workload.tokens),
        ttft_s=pace.ttft_s,
        tpot_s=pace.interval_s,
    )


def _parse(content: bytes, who: str) -> dict[str, Any]:  # Any: JSON
    try:
        return dict(orjson.loads(content))
    except (orjson.JSONDecodeError, TypeError, ValueError) as exc:
        words = content[:300].decode(errors="replace")
        raise BenchError(f"{who} wrote no figures: {words}") from exc


def _expect(who: str, what: str, found: float, asked: float) -> None:
    if found != asked:
        raise _other_work(who, what, found, asked)


def _other_work(who: str, what: str, found: float, asked: float) -> BenchError:
    return BenchError(f"{who} did other work than it was given: {what} {found:g}, asked for {asked:g}")


def _convert(metric: Mapping[str, Any], statistic: str, units: Mapping[str, float]) -> float:  # Any: JSON
    """AIPerf names each figure's unit; one that is not known here would be off by a power of ten."""
    if metric["unit"] not in units:
        raise BenchError(f"AIPerf tells a figure in {metric['unit']}, which is none of {', '.join(units)}")
    return float(metric[statistic]) * units[metric["unit"]]
