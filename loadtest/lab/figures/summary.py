"""Medians over repeats and ratios between systems, of one run. Pure.

In: records. Out: numbers, or None where nothing that counts was measured.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from loadtest.lab.figures.measurement import Measurement, Record

Figure = Callable[[Measurement], float | None]


def _per(count: str, read: Callable[[Measurement], float]) -> Figure:
    """Makes a Figure of `read` over a count; None where nothing was counted."""
    counted = attrgetter(count)
    return lambda measured: read(measured) / counted(measured) if counted(measured) else None


def _rate(count: str) -> Figure:
    """Makes a Figure of a count per second; None where nothing was counted."""
    counted = attrgetter(count)
    return lambda measured: counted(measured) / measured.window_s if counted(measured) else None


def _percentile(spread: str, name: str) -> Figure:
    """Makes a Figure of a spread's percentile; None without samples."""
    count, value = attrgetter(f"{spread}.count"), attrgetter(f"{spread}.{name}")
    return lambda measured: value(measured) if count(measured) else None


cpu_us_per_token = _per("tokens", lambda measured: measured.cpu_s * 1e6)
cpu_us_per_request = _per("requests", lambda measured: measured.cpu_s * 1e6)
tokens_per_read = _per("reads", lambda measured: measured.tokens)  # above 1, single tokens were late and came together
tokens_per_s, requests_per_s = _rate("tokens"), _rate("requests")
latency_p50_us, latency_p99_us = _percentile("latency_us", "p50"), _percentile("latency_us", "p99")
delay_p50_us, delay_p99_us = _percentile("delay_us", "p50"), _percentile("delay_us", "p99")
gap_p99_us, lag_p99_us = _percentile("gap_us", "p99"), _percentile("lag_us", "p99")


def cpu_percent(measured: Measurement) -> float | None:
    return 100 * measured.cpu_s / measured.window_s


def bystander_percent(measured: Measurement) -> float | None:
    """Share of a CPU that mock engine and client used. Near 100, they were the bottleneck."""
    return 100 * (measured.mock_cpu_s + measured.client_cpu_s) / measured.window_s


def other_percent(measured: Measurement) -> float | None:
    """Share of a CPU that other processes used: it should be little, or others used the machine too."""
    return 100 * measured.other_cpu_s / measured.window_s


@dataclass(frozen=True, slots=True)
class Summary:
    """The measurements of one run that count, by (scenario, system), and the extra figures of some scenarios."""

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
        """Returns a summary of each repeat, in which all systems were measured within minutes of each other."""
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
        """Share of a CPU that other processes used in the median measurement."""
        return _median(other_percent(each) for group in self.measurements.values() for each in group)

    def repeats(self, scenario: str, system: str) -> int:
        return len(self.measurements.get((scenario, system), ()))

    def median(self, scenario: str, system: str, figure: Figure) -> float | None:
        return _median(figure(measured) for measured in self.measurements.get((scenario, system), ()))

    def extra(self, scenario: str, system: str, name: str) -> float | None:
        return _median(self.extras.get((scenario, system, name), ()))

    def ratio(self, scenario: str, figure: Figure, system: str, reference: str) -> float | None:
        return divide(self.median(scenario, system, figure), self.median(scenario, reference, figure))

    def added(self, scenario: str, figure: Figure, system: str) -> float | None:
        """Returns the figure less the same figure without any gateway."""
        return subtract(self.median(scenario, system, figure), self.median(scenario, "direct", figure))


def _median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return median(present) if present else None


def divide(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def subtract(value: float | None, less: float | None) -> float | None:
    return value - less if value is not None and less is not None else None
