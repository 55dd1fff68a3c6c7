"""Pictures of one trace of a rehearsal: arrivals, every arm's answer times, and where requests were. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from loadtest.rehearsal.rehearse import Sample, Serving, name_alone
from loadtest.report.chart import Axis, Chart, Line, Marks, Point, axis_from_zero

SLICES = 60  # of a trace's time, in pictures
STYLES = ("low", "high", "shape-c", "shape-d", "shape-e", "shape-f")  # of arms, the two engines alone first


@dataclass(frozen=True, slots=True)
class TracePictures:
    """Charts as SVG text. `keys`: arms with their styles. `routed`: one for each serving that was routed."""

    name: str
    arrivals: str
    times: str
    keys: Sequence[tuple[str, str]]
    routed: Sequence[str]


def draw_trace(
    name: str,
    backends: tuple[str, str],
    servings: Sequence[Serving],
    what: str,
    find_times: Callable[[Serving], Sequence[float]],
) -> TracePictures:
    """Draws the servings of one trace. `what`: the times that `find_times` returns, in words."""
    alone, due_s = list(map(name_alone, backends)), servings[0].due_s
    arms = dict.fromkeys([*alone, *(serving.arm for serving in servings)])
    keys = [(arm, STYLES[number % len(STYLES)]) for number, arm in enumerate(arms)]
    seconds = max([due_s[-1], *(sample.at for serving in servings for sample in serving.samples)])
    times = {arm: [find_times(serving) for serving in servings if serving.arm == arm] for arm in arms}
    lines = [Line(style, list(_list_means(arm, due_s, times[arm], seconds))) for arm, style in keys if times[arm]]
    arrivals = Line("ratio", list(_list_rates(due_s, seconds)))
    routed = [serving for serving in servings if serving.arm not in alone and serving.samples]
    return TracePictures(
        name=name,
        arrivals=_draw(f"{name}: requests that arrive each second", [arrivals], seconds).render(),
        times=_draw(f"{name}: seconds that {what} takes", lines, seconds).render(),
        keys=keys,
        routed=[_draw_routed(serving, backends[1], seconds).render() for serving in routed],
    )


def _list_slices(due_s: Sequence[float], seconds: float) -> Iterator[tuple[float, Sequence[int]]]:
    """Yields the middle of each slice of the time, and which requests are due in it."""
    for number in range(SLICES):
        start, end = number * seconds / SLICES, (number + 1) * seconds / SLICES
        yield (start + end) / 2, [index for index, at in enumerate(due_s) if start <= at < end]


def _list_rates(due_s: Sequence[float], seconds: float) -> Iterator[Point]:
    for at, due in _list_slices(due_s, seconds):
        rate = len(due) * SLICES / seconds
        yield Point(at, rate, f"{at:.1f} s: {rate:.3g} a second")


def _list_means(
    arm: str, due_s: Sequence[float], repeats: Sequence[Sequence[float]], seconds: float
) -> Iterator[Point]:
    for at, due in _list_slices(due_s, seconds):
        if due:
            mean_s = fmean(times[index] for times in repeats for index in due)
            yield Point(at, mean_s, f"{arm}, {at:.1f} s: {mean_s:.3g} s")


def _draw_routed(serving: Serving, high: str, seconds: float) -> Chart:
    samples = [sample for sample in serving.samples if sample.at >= 0]
    lines = [Line(style, [_make_point(sample, style) for sample in samples]) for style in ("low", "high")]
    title = (
        f"{serving.trace}, {serving.arm}, repeat {serving.repeat + 1}: in flight "
        f"({serving.switches} changes, {serving.moves} moves)"
    )
    marks = Marks(stretches=list(_list_stretches(samples, high)), stretch_title=f"the plan sends requests to {high}")
    return _draw(title, lines, seconds, marks)


def _list_stretches(samples: Sequence[Sample], side: str) -> Iterator[tuple[float, float]]:
    """Yields the stretches of time in which the plan was on this side: from the first sample there to the next one that
    is not.
    """
    start: float | None = None
    for sample, following in pairwise([*samples, samples[-1]] if samples else []):
        if sample.side == side and start is None:
            start = sample.at
        if start is not None and (following.side != side or following is sample):
            yield start, following.at
            start = None


def _draw(title: str, lines: Sequence[Line], seconds: float, marks: Marks | None = None) -> Chart:
    ticks = [(seconds * part / 4, f"{seconds * part / 4:.0f}") for part in range(5)]
    y = axis_from_zero([point.y for line in lines for point in line.points], lambda value: f"{value:g}")
    return Chart(title, lines, Axis(0.0, seconds, ticks, has_grid=False, title="seconds"), y, marks or Marks())


def _make_point(sample: Sample, style: str) -> Point:
    count = sample.low if style == "low" else sample.high
    return Point(sample.at, count, f"{sample.at:.1f} s: {count}")
