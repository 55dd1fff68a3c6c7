"""What the GPUs did at every level under either backend, as a table. Pure."""

import statistics
from collections.abc import Iterator, Sequence

from loadtest.cell import Cell, Gpu

HEADINGS = ("backend", "in flight", "GPU", "power, W", "SM clock, MHz", "least", "memory, GiB", "at most, °C", "busy")


def list_gpus(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Rows under HEADINGS, means over a level's cells; none where nothing was told."""
    groups: dict[tuple[str, int, str], list[Gpu]] = {}
    for cell in cells:
        for gpu in cell.gpus:
            groups.setdefault((cell.backend, cell.level, gpu.gpu), []).append(gpu)
    return [(backend, str(level), *_fields(groups[backend, level, gpu])) for backend, level, gpu in sorted(groups)]


def find_power_w(cell: Cell) -> float | None:
    """Of all GPUs together."""
    known = [gpu.power_w for gpu in cell.gpus if gpu.power_w is not None]
    return round(sum(known), 1) if known else None


def _fields(gpus: Sequence[Gpu]) -> Iterator[str]:
    first = gpus[0]
    yield f"{first.gpu} {first.name}".rstrip()
    yield _mean([gpu.power_w for gpu in gpus])
    yield _mean([gpu.sm_clock_mhz for gpu in gpus])
    yield _show(min((gpu.least_sm_clock_mhz for gpu in gpus if gpu.least_sm_clock_mhz is not None), default=None))
    used = max((gpu.memory_used_mib for gpu in gpus if gpu.memory_used_mib is not None), default=None)
    yield "n/a" if used is None else f"{used / 1024:.1f}"
    yield _show(max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None))
    busy = [gpu.busy for gpu in gpus if gpu.busy is not None]
    yield f"{statistics.fmean(busy):.0%}" if busy else "n/a"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _show(statistics.fmean(known) if known else None)


def _show(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"
