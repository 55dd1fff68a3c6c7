"""Everything that one run of `crossover fabric` found, and its JSON. Pure.

In: measured curves and a forecast. Out: the document of fabric.json. Knows no process and no report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from engines.fabric.curve import Curve, Fit, Timing, find_bus_bandwidth, fit_latency
from engines.fabric.datasheet import DataSheet
from engines.fabric.forecast import Forecast, Row

SCHEMA = "crossover.fabric/1"
WAYS = ("graph", "eager")  # the first that was measured is how engines decode


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`peers`: pairs of GPUs that reach each other's memory. `settings`: environment that NCCL or gloo reads."""

    torch: str
    cuda: str | None
    nccl: str | None
    gpus: Sequence[Gpu]
    peers: Sequence[tuple[int, int]]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Measured:
    """One degree of tensor parallelism. `devices`: indices of its GPUs, empty on CPUs. `curves` by way."""

    tp: int
    devices: Sequence[int]
    curves: Mapping[str, Curve]

    @property
    def main(self) -> Curve:
        """The curve of decoding: from a graph where there are graphs."""
        return next(self.curves[way] for way in WAYS if way in self.curves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    started_at: str
    backend: str
    device: str
    machine: Machine
    sheet: DataSheet
    measured: Sequence[Measured]
    forecast: Forecast | None

    def find_link_share(self, timing: Timing, tp: int) -> float | None:
        """The share of the link's bandwidth in one direction; None where that is not known."""
        if self.sheet.link is None:
            return None
        return find_bus_bandwidth(timing.size, timing.median_s, tp) / self.sheet.link

    def to_json(self) -> dict[str, object]:
        return {
            "schema": SCHEMA,
            "started_at": self.started_at,
            "backend": self.backend,
            "device": self.device,
            "machine": asdict(self.machine),
            "data_sheet": asdict(self.sheet),
            "tp": [self._encode_measured(measured) for measured in self.measured],
            "forecast": _encode_forecast(self.forecast) if self.forecast else None,
        }

    def _encode_measured(self, measured: Measured) -> dict[str, object]:
        curves = {way: self._encode_curve(curve) for way, curve in measured.curves.items()}
        return {"tp": measured.tp, "devices": measured.devices, "curves": curves}

    def _encode_curve(self, curve: Curve) -> dict[str, object]:
        return {
            "floor_s": curve.floor_s,
            "fit": _encode_fit(fit_latency(curve.timings)),
            "sizes": [self._encode_timing(timing, curve.ranks) for timing in curve.timings],
        }

    def _encode_timing(self, timing: Timing, tp: int) -> dict[str, object]:
        return {
            "bytes": timing.size,
            "median_s": timing.median_s,
            "least_s": timing.least_s,
            "most_s": timing.most_s,
            "repeats": timing.repeats,
            "bus_gb_s": find_bus_bandwidth(timing.size, timing.median_s, tp) / 1e9,
            "link_share": self.find_link_share(timing, tp),
        }


def _encode_fit(fit: Fit | None) -> dict[str, object] | None:
    if fit is None:
        return None
    return {"latency_s": fit.latency_s, "gb_s": fit.bytes_per_s / 1e9, "worst_miss": fit.worst}


def _encode_forecast(forecast: Forecast) -> dict[str, object]:
    return {
        "model": asdict(forecast.model),
        "gpus": forecast.gpus,
        "left_out": forecast.reasons,
        "decode": [{"in_flight": row.load, **_encode_row(row), "best_tp": row.best} for row in forecast.decode],
        "prefill": [
            {"tokens": row.load, **_encode_row(row), "soonest_tp": row.best, "most_tp": row.most}
            for row in forecast.prefill
        ],
    }


def _encode_row(row: Row) -> dict[str, object]:
    return {"steps": [asdict(step) | {"total_s": step.total_s} for step in row.steps]}
