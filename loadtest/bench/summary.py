"""Medians over repeats and ratios between systems, of one run. Pure.

In: records. Out: numbers, or None where nothing that counts was measured.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from loadtest.bench.client import Measurement
from loadtest.bench.record import Record

Figure = Callable[[Measurement], float | None]


def cpu_us_per_token(measured: Measurement) -> float | None:
    return measured.cpu_s * 1e6 / measured.tokens if measured.tokens else None


def cpu_us_per_request(measured: Measurement) -> float | None:
    return measured.cpu_s * 1e6 / measured.requests if measured.requests else None


def cpu_percent(measured: Measurement) -> float | None:
    return 100 * measured.cpu_s / measured.window_s


def tokens_per_s(measured: Measurement) -> float | None:
    return measured.tokens / measured.window_s if measured.tokens else None


def requests_per_s(measured: Measurement) -> float | None:
    return measured.requests / measured.window_s if measured.requests else None


def latency_p50_us(measured: Measurement) -> float | None:
    return measured.latency_us.p50 if measured.latency_us.count else None


def latency_p99_us(measured: Measurement) -> float | None:
    return measured.latency_us.p99 if measured.latency_us.count else None


def delay_p50_us(measured: Measurement) -> float | None:
    return measured.delay_us.p50 if measured.delay_us.count else None


def delay_p99_us(measured: Measurement) -> float | None:
    return measured.delay_us.p99 if measured.delay_us.count else None


def ttft_p50_us(measured: Measurement) -> float | None:
    return measured.ttft_us.p50 if measured.ttft_us.count else None


def gap_p99_us(measured: Measurement) -> float | None:
    return measured.gap_us.p99 if measured.gap_us.count else None


def lag_p99_us(measured: Measurement) -> float | None:
    return measured.lag_us.p99 if measured.lag_us.count else None


def tokens_per_read(measured: Measurement) -> float | None:
    """Above 1, tokens came together: somebody on the way was late for each single one."""
    return measured.tokens / measured.reads if measured.tokens and measured.reads else None


def bystander_percent(measured: Measurement) -> float | None:
    """Of a CPU, what mock engine and client used: near 100 they are what was measured."""
    return 100 * (measured.mock_cpu_s + measured.client_cpu_s) / measured.window_s


def other_percent(measured: Measurement) -> float | None:
    """Of a CPU, what nobody here used: it should be little, or the machine was not ours."""
    return 100 * measured.other_cpu_s / measured.window_s


@dataclass(frozen=True, slots=True)
class Summary:
    """The measurements of one run that count, by (scenario, system), and the figures of scenarios of another kind."""

    measurements: Mapping[tuple[str, str], tuple[Measurement, ...]]
    extras: Mapping[tuple[str, str, str], tuple[float, ...]]
    void: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Summary":
        measurements: defaultdict[tuple[str, str], list[Measurement]] = defaultdict(list)
        extras: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        void = []
        for record in records:
            if record.complaint is not None:
                void.append(record)
                continue
            if record.measurement is not None:
                measurements[record.scenario, record.system].append(record.measurement)
            for name, value in record.extra.items():
                extras[record.scenario, record.system, name].append(value)
        return cls(
            {key: tuple(values) for key, values in measurements.items()},
            {key: tuple(values) for key, values in extras.items()},
            tuple(void),
        )

    @classmethod
    def of_each_repeat(cls, records: Iterable[Record]) -> "tuple[Summary, ...]":
        """What each repeat says by itself: systems side by side, within minutes of each other."""
        repeats: defaultdict[int, list[Record]] = defaultdict(list)
        for record in records:
            repeats[record.repeat].append(record)
        return tuple(cls.of(repeats[number]) for number in sorted(repeats))

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(scenario for scenario, _ in self.measurements))

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(system for _, system in self.measurements))

    @property
    def disturbance_percent(self) -> float | None:
        """Of a CPU, what others used in the median measurement."""
        return median_of(other_percent(each) for group in self.measurements.values() for each in group)

    def repeats(self, scenario: str, system: str) -> int:
        return len(self.measurements.get((scenario, system), ()))

    def median(self, scenario: str, system: str, figure: Figure) -> float | None:
        values = [figure(measured) for measured in self.measurements.get((scenario, system), ())]
        return median_of(values)

    def extra(self, scenario: str, system: str, name: str) -> float | None:
        return median_of(self.extras.get((scenario, system, name), ()))

    def ratio(self, scenario: str, figure: Figure, system: str, reference: str) -> float | None:
        return divide(self.median(scenario, system, figure), self.median(scenario, reference, figure))

    def added(self, scenario: str, figure: Figure, system: str) -> float | None:
        """What a system adds to the same figure without any gateway."""
        return subtract(self.median(scenario, system, figure), self.median(scenario, "direct", figure))


def median_of(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def divide(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def subtract(value: float | None, less: float | None) -> float | None:
    return value - less if value is not None and less is not None else None
