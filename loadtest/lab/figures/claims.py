"""What the data plane promises, with bounds, and whether a run kept them. Pure."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Literal

from loadtest.lab.figures.scenarios import GRPC_ALONE, SOCKET, TRITON, TRITON_LANE
from loadtest.lab.figures.summary import (
    Figure,
    Summary,
    cpu_us_per_request,
    cpu_us_per_token,
    delay_p50_us,
    delay_p99_us,
    divide,
    gap_p99_us,
    lag_p99_us,
    subtract,
)

RELAY, TOKEN = "crossover-relay", "crossover-token"
RELAY_2W, TOKEN_2W = "crossover-relay-2w", "crossover-token-2w"

MIN_PAIRS = 3

Verdict = Literal["holds", "missed", "not measured"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A promise. `number`: its number. `bound`: the largest value that keeps it; with `is_least`, the smallest."""

    number: str
    text: str
    measure: Callable[[Summary], float | None]
    bound: float
    is_least: bool = False
    unit: str = "x"
    is_goal: bool = False

    @property
    def bound_text(self) -> str:
        sign = "≥" if self.is_least else "≤"
        return f"{sign} {show(self.bound, self.unit)}{' (goal)' if self.is_goal else ''}"

    def verdict(self, value: float | None) -> Verdict:
        if value is None:
            return "not measured"
        is_kept = value >= self.bound if self.is_least else value <= self.bound
        return "holds" if is_kept else "missed"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A ratio taken within each repeat: geometric mean, and its standard error as a share of it."""

    mean: float
    error: float

    @classmethod
    def of(cls, claim: Claim, repeats: Sequence[Summary]) -> "Pairs | None":
        """Returns a claim's pairs; None if it is no ratio, or too few repeats have one. Drift cancels within each."""
        values = [value for repeat in repeats if (value := claim.measure(repeat)) is not None]
        if claim.unit != "x" or len(values) < MIN_PAIRS or min(values) <= 0:
            return None
        logs = [math.log(value) for value in values]
        return cls(math.exp(mean(logs)), stdev(logs) / math.sqrt(len(logs)))

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.mean * self.error:.2f}"


def show(value: float, unit: str) -> str:
    """Formats a value as tables print it."""
    match unit:
        case "x":
            return f"{value:.2f} x"
        case "":
            return f"{value:,.0f}"
        case _:
            return f"{value:,.1f} {unit}"


def _ratio(scenario: str, figure: Figure, system: str, reference: str) -> Callable[[Summary], float | None]:
    return lambda summary: summary.ratio(scenario, figure, system, reference)


def _added_ratio(scenario: str, figure: Figure, system: str, reference: str) -> Callable[[Summary], float | None]:
    return lambda summary: divide(summary.added(scenario, figure, system), summary.added(scenario, figure, reference))


def _carried(two: str, one: str) -> Callable[[Summary], float | None]:
    """Measures the added delay of two workers with 1.8 times the streams, over that of one worker."""
    return lambda summary: divide(
        summary.added("pace810", delay_p50_us, two), summary.added("pace450", delay_p50_us, one)
    )


def _memory_per_stream(system: str) -> Callable[[Summary], float | None]:
    """Measures kB of resident memory for each of the soak's streams, over what it was before them."""

    def measure(summary: Summary) -> float | None:
        return summary.median("soak", system, lambda m: (m.peak_rss_kib - m.idle_rss_kib) * 1.024 / 2000)

    return measure


def _lag(system: str) -> Callable[[Summary], float | None]:
    return lambda summary: divide(summary.median("soak", system, lag_p99_us), 1000)


def _broken_tokens(system: str) -> Callable[[Summary], float | None]:
    """Counts tokens lost or out of order in the soak, also in measurements that do not count because of them."""

    def measure(summary: Summary) -> float | None:
        counted = list(summary.measurements.get(("soak", system), ()))
        counted += [r.measurement for r in summary.void if (r.scenario, r.system) == ("soak", system) and r.measurement]
        return float(max(abs(m.lost) + m.reordered for m in counted)) if counted else None

    return measure


def _gap_rise(summary: Summary) -> float | None:
    rise = subtract(summary.median("longprompt", TOKEN, gap_p99_us), summary.median("quiet", TOKEN, gap_p99_us))
    return divide(rise, 1000)


def _triton(summary: Summary) -> float | None:
    lane = summary.median(TRITON.name, TRITON_LANE, cpu_us_per_token)
    return divide(lane, summary.extra(TRITON.name, GRPC_ALONE, "cpu_us_per_token"))


def claims() -> Iterator[Claim]:
    token, request = cpu_us_per_token, cpu_us_per_request
    relay, lane = "relay, 256 paced streams", "token lane, 256 paced streams"
    yield Claim("1", f"{relay}: CPU per token / nginx", _ratio("pace256", token, RELAY, "nginx"), 1.0)
    yield Claim("1", f"{relay}: CPU per token / vllm-router", _ratio("pace256", token, RELAY, "vllm-router"), 0.9)
    for name, what in (
        ("lock64", "64 in lockstep"),
        ("lock256", "256 in lockstep"),
        ("pace512", "512 paced"),
        ("pace1000", "1,000 paced"),
    ):
        ratio = _ratio(name, token, RELAY, "vllm-router")
        yield Claim("1", f"relay, {what}: CPU per token / vllm-router", ratio, 1.0)
    for reference, bound in (("vllm-router", 1.0), ("nginx", 2.0)):
        ratio, text = _ratio("ns16", request, RELAY, reference), f"relay, 16 in flight: CPU per request / {reference}"
        yield Claim("2", text, ratio, bound, is_goal=reference == "nginx")
    yield Claim("3", f"{lane}: CPU per token / smg's relay", _ratio("pace256", token, TOKEN, "smg"), 1.1)
    for name, figure, bound in (("p50", delay_p50_us, 1.5), ("p99", delay_p99_us, 2.0)):
        yield Claim("3", f"{lane}: added delay {name} / nginx", _added_ratio("pace256", figure, TOKEN, "nginx"), bound)
    yield Claim("4", "token lane to Triton, 64 paced streams: CPU per token / grpc.aio alone", _triton, 0.5)
    for scenario, what, figure, bound in (
        ("pace64", "64 paced streams: CPU per token", token, 12),
        ("ns16", "16 in flight: CPU per request", request, 50),
    ):
        yield Claim("5", f"LiteLLM / relay, {what}", _ratio(scenario, figure, "litellm", RELAY), bound, is_least=True)
    for two, one, what in ((RELAY_2W, RELAY, "relay"), (TOKEN_2W, TOKEN, "token lane")):
        ratio = _ratio("pace256", token, two, one)
        yield Claim("6", f"{what}, 256 paced streams: CPU per token, two workers / one", ratio, 1.1)
    for system, what in ((RELAY, "relay"), (TOKEN, "token lane"), (SOCKET, "token lane through a socket")):
        soak, broken = f"{what}, 2,000 streams", _broken_tokens(system)
        yield Claim("7", f"{soak} for a minute: tokens lost or out of order", broken, 0, unit="")
        yield Claim("7", f"{soak}: memory per open stream", _memory_per_stream(system), 40, unit="kB")
        yield Claim("7", f"{soak}: event loop's lag, p99", _lag(system), 20, unit="ms")
    text = "token lane, 100 streams: rise of the p99 gap by a 100,000-token prompt a second"
    yield Claim("8", text, _gap_rise, 10, unit="ms")
    for two, one, what in ((RELAY_2W, RELAY, "relay"), (TOKEN_2W, TOKEN, "token lane")):
        text = f"{what}, added delay p50: two workers with 810 paced streams / one with 450"
        yield Claim("9", text, _carried(two, one), 1.0)
    yield Claim(
        "10", f"{lane}: CPU per token, engine at a socket / by TCP", _ratio("pace256", token, SOCKET, TOKEN), 1.0
    )
