"""Times of all-reduces as medians with their spread, as bus bandwidth, and as a curve over the message's size. Pure.

In: samples of one group of ranks. Out: timings, a fit, the time that any size would take. Knows no GPU and no model.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """`way`: "graph" (replayed from a CUDA graph, as engines decode) or "eager" (called one by one)."""

    way: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timing:
    """One size over all repeats: bytes and seconds."""

    size: int
    median_s: float
    least_s: float
    most_s: float
    repeats: int

    @property
    def spread(self) -> float:
        """From the least repeat to the most, as a share of the median."""
        return (self.most_s - self.least_s) / self.median_s


@dataclass(frozen=True, slots=True)
class Fit:
    """t = latency_s + size / bytes_per_s. `worst`: the largest share by which it misses a median."""

    latency_s: float
    bytes_per_s: float
    worst: float


@dataclass(frozen=True, slots=True)
class Curve:
    """`timings` by rising size."""

    ranks: int
    way: str
    timings: Sequence[Timing]

    @classmethod
    def of(cls, ranks: int, way: str, samples: Iterable[Sample]) -> "Curve":
        sizes: dict[int, list[float]] = {}
        for sample in samples:
            if sample.way == way:
                sizes.setdefault(sample.size, []).append(sample.seconds)
        return cls(ranks, way, [_summarise(size, sizes[size]) for size in sorted(sizes)])

    @property
    def floor_s(self) -> float:
        """What the smallest message takes: hardly anything but latency."""
        return self.timings[0].median_s

    @property
    def best(self) -> Timing:
        """The size with the highest bus bandwidth."""
        return max(self.timings, key=lambda timing: timing.size / timing.median_s)

    def find_time_s(self, size: float) -> float:
        """By a straight line between logarithms of neighbouring sizes; below the smallest its time, beyond the largest
        that one's bandwidth.
        """
        at = bisect_left(self.timings, size, key=lambda timing: timing.size)
        if at == 0:
            return self.floor_s
        before = self.timings[at - 1]
        if at == len(self.timings):
            return before.median_s * size / before.size
        after = self.timings[at]
        share = math.log(size / before.size) / math.log(after.size / before.size)
        return before.median_s * math.exp(share * math.log(after.median_s / before.median_s))


def _summarise(size: int, seconds: Sequence[float]) -> Timing:
    return Timing(size, statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def find_bus_bandwidth(size: float, seconds: float, ranks: int) -> float:
    """Bytes per second that each rank's link carries in each direction: 2 (n - 1) / n x size / time.

    So it can be held against the link's own, whatever the number of ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md). A
    switch that sums by itself (NVLink SHARP) moves less than this counts, and may show more than the link has.
    """
    return 2 * (ranks - 1) / ranks * size / seconds


def fit_latency(timings: Sequence[Timing]) -> Fit | None:
    """Hockney's model t = a + size / b, by least squares of relative errors, so that every size weighs the same.

    None where fewer than two sizes, or times that do not grow with the size, leave no such line.
    """
    rows = [(1 / timing.median_s, timing.size / timing.median_s) for timing in timings]
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in _products(rows))
    determinant = aa * bb - ab * ab
    if len(rows) < 2 or determinant <= 0:
        return None
    a, b = sum(one for one, _ in rows), sum(size for _, size in rows)
    latency_s, per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if per_byte <= 0:
        return None
    worst = max(abs(latency_s * one + per_byte * size - 1) for one, size in rows)
    return Fit(latency_s, 1 / per_byte, worst)


def _products(rows: Sequence[tuple[float, float]]) -> Iterable[list[tuple[float, float]]]:
    """Factors of the normal equations' three sums: of latency by itself, by size, and of size by itself."""
    yield [(one, one) for one, _ in rows]
    yield list(rows)
    yield [(size, size) for _, size in rows]
