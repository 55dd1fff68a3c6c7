"""What the GPUs did at every level under either backend, as a table. Pure."""

import statistics
from collections.abc import Iterable, Sequence

from loadtest.results.cell import Cell, Gpu
from loadtest.results.curves import group

HEADINGS = ("backend", "in flight", "GPU", "power, W", "SM clock, MHz", "least", "memory, GiB", "at most, °C", "busy")


def list_gpus(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Returns rows under HEADINGS, means over a level's cells; none where no exporter reported anything."""
    groups = group(((cell.backend, cell.level, gpu.gpu), gpu) for cell in cells for gpu in cell.gpus)
    return [(backend, str(level), *_fields(groups[backend, level, gpu])) for backend, level, gpu in sorted(groups)]


def sum_power_w(cell: Cell) -> float | None:
    """Sums the power of all GPUs, in watts; None where none is known."""
    known = _known(gpu.power_w for gpu in cell.gpus)
    return round(sum(known), 1) if known else None


def _fields(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    busy, used = _known(gpu.busy for gpu in gpus), _known(gpu.memory_used_mib for gpu in gpus)
    return (
        f"{gpus[0].gpu} {gpus[0].name}".rstrip(),
        _show(_mean(gpu.power_w for gpu in gpus)),
        _show(_mean(gpu.sm_clock_mhz for gpu in gpus)),
        _show(min(_known(gpu.least_sm_clock_mhz for gpu in gpus), default=None)),
        f"{max(used) / 1024:.1f}" if used else "n/a",
        _show(max(_known(gpu.temperature_c for gpu in gpus), default=None)),
        f"{statistics.fmean(busy):.0%}" if busy else "n/a",
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _show(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"
