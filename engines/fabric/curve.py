"""Times of all-reduces: medians with their spread, bus bandwidth, and a curve over the size of the message. Pure.

In: samples of one group of ranks. Out: timings, a fit, the time of any size. Knows no GPU and no model.
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul


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
        """The distance from the least repeat to the most, as a share of the median."""
        return (self.most_s - self.least_s) / self.median_s


@dataclass(frozen=True, slots=True)
class Fit:
    """t = latency_s + size / bytes_per_s. `worst`: the largest share by which it misses a median."""

    latency_s: float
    bytes_per_s: float
    worst: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The timings of all-reduces between `ranks` ranks in one `way`, by rising size."""

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
        """The time of the smallest message: hardly anything but latency."""
        return self.timings[0].median_s

    @property
    def best(self) -> Timing:
        """The size with the highest bus bandwidth."""
        return max(self.timings, key=lambda timing: timing.size / timing.median_s)

    def find_time_s(self, size: float) -> float:
        """Interpolates by a straight line between the logarithms of neighbouring sizes. A size below the smallest takes
        that one's time; one beyond the largest goes at that one's bandwidth.
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

    It compares with the link's own bandwidth at any number of ranks (NVIDIA nccl-tests, doc/PERFORMANCE.md). A switch
    that sums by itself (NVLink SHARP) moves fewer bytes than this counts, so the result may exceed the link's.
    """
    return 2 * (ranks - 1) / ranks * size / seconds


def fit_latency(timings: Sequence[Timing]) -> Fit | None:
    """Fits Hockney's model t = a + size / b, by least squares of relative errors, so that every size weighs the same.

    Returns None for fewer than two sizes, or times that do not grow with the size.
    """
    rows = [(1 / timing.median_s, timing.size / timing.median_s) for timing in timings]
    ones, sizes = [one for one, _ in rows], [size for _, size in rows]
    # The sums of the normal equations.
    aa, ab, bb = (sum(map(mul, x, y)) for x, y in ((ones, ones), (ones, sizes), (sizes, sizes)))
    determinant = aa * bb - ab * ab
    if len(rows) < 2 or determinant <= 0:
        return None
    a, b = sum(ones), sum(sizes)
    latency_s, per_byte = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if per_byte <= 0:
        return None
    worst = max(abs(latency_s * one + per_byte * size - 1) for one, size in rows)
    return Fit(latency_s, 1 / per_byte, worst)
