"""Power, clocks and memory of the GPUs while a cell is measured, as NVIDIA's DCGM exporter reports them to Prometheus.

In: the exporter's page. Out: a Gpu for each that the page names. Field names and units are those of the exporter's
default counters (https://docs.nvidia.com/datacenter/dcgm/latest/reference/dcgm-exporter-metrics.html).
"""

import asyncio
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from loadtest.client.connection import clock
from loadtest.client.errors import Unreachable
from loadtest.client.recording import Recording
from loadtest.client.target import Target
from loadtest.results.cell import Gpu

POLL_S = 1.0
FIELDS = {
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_SM_CLOCK": "sm_clock_mhz",
    "DCGM_FI_DEV_FB_USED": "memory_used_mib",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_GPU_UTIL": "busy_percent",
}
BLANK = 2.0**62  # DCGM's values for "not known" lie above


@dataclass(frozen=True, slots=True)
class Reading:
    """One page: each GPU's values by the names in FIELDS, and its product name."""

    at: float
    gpus: Mapping[str, Mapping[str, float]]
    names: Mapping[str, str]


def read_page(page: str, at: float) -> Reading:
    """Parses a page of DCGM's exporter. Raises ValueError if it is something else."""
    gpus: dict[str, dict[str, float]] = {}
    names: dict[str, str] = {}
    for family in text_string_to_metric_families(page):
        if (name := FIELDS.get(family.name)) is None:
            continue
        for sample in family.samples:
            gpu = sample.labels.get("gpu", "")
            names[gpu] = sample.labels.get("modelName") or names.get(gpu, "")
            if sample.value < BLANK:
                gpus.setdefault(gpu, {})[name] = sample.value
    if not gpus:
        raise ValueError(f"it has none of {', '.join(FIELDS)}")
    return Reading(at, gpus, names)


@dataclass(slots=True)
class GpuWatch:
    """The readings of the GPUs while one cell is measured."""

    exporter: Target
    _readings: list[Reading] = field(default_factory=list)

    async def read(self) -> None:
        """Takes one reading. Raises Unreachable if the exporter does not answer, or answers something else."""
        page = await self.exporter.fetch_text("GET", "")
        try:
            self._readings.append(read_page(page, clock()))
        except ValueError as exc:
            raise Unreachable(f"{self.exporter} is not the page of a DCGM exporter: {exc}") from exc

    async def sample(self) -> None:
        """Reads until it is cancelled. An exporter that fails for a moment is read again: it decides nothing."""
        while True:
            with suppress(Unreachable):
                await self.read()
            await asyncio.sleep(POLL_S)

    def summarise(self, recording: Recording) -> tuple[Gpu, ...]:
        """Sums up each GPU's readings in the recording's window."""
        return summarise(reading for reading in self._readings if recording.holds(reading.at))


def summarise(readings: Iterable[Reading]) -> tuple[Gpu, ...]:
    """Sums up each GPU's readings, in the order of the GPUs' numbers; leaves out a GPU without a reading."""
    found: dict[str, list[Mapping[str, float]]] = {}
    names: dict[str, str] = {}
    for reading in readings:
        names |= reading.names
        for gpu, values in reading.gpus.items():
            found.setdefault(gpu, []).append(values)
    return tuple(_summarise(gpu, names[gpu], found[gpu]) for gpu in sorted(found, key=lambda gpu: (len(gpu), gpu)))


def _summarise(gpu: str, name: str, readings: Sequence[Mapping[str, float]]) -> Gpu:
    def values(of: str) -> list[float]:
        return [reading[of] for reading in readings if of in reading]

    def mean(of: str) -> float | None:
        known = values(of)
        return round(statistics.fmean(known), 3) if known else None

    busy = mean("busy_percent")
    return Gpu(
        gpu=gpu,
        name=name,
        readings=len(readings),
        power_w=mean("power_w"),
        sm_clock_mhz=mean("sm_clock_mhz"),
        least_sm_clock_mhz=min(values("sm_clock_mhz"), default=None),
        memory_used_mib=max(values("memory_used_mib"), default=None),
        temperature_c=max(values("temperature_c"), default=None),
        busy=None if busy is None else busy / 100,
    )
