"""The comparison as Markdown, which a terminal shows as well as a page does. Pure."""

from collections.abc import Iterator

from loadtest.agreement.compare import METRICS, Tally, scale
from loadtest.agreement.reading import Reading
from loadtest.agreement.workload import Workload


def write_report(tally: Tally, workload: Workload, pace: Reading | None) -> str:
    """`pace`: what the engine does, where that is known."""
    return "\n".join([*_heading(tally, workload), "", *_means(tally, pace), "", *_differences(tally), ""])


def _heading(tally: Tally, workload: Workload) -> Iterator[str]:
    yield (
        f"{workload.concurrency} in flight, {workload.requests} requests of {workload.tokens} tokens, prompts of "
        f"{workload.prompt_words} words; {tally.rounds} rounds, testers in turn. Means with 90 % intervals "
        "(Student's t)."
    )


def _means(tally: Tally, pace: Reading | None) -> Iterator[str]:
    yield f"| | {' | '.join(METRICS.values())} | engine late by |"
    yield f"|---|{'---:|' * (len(METRICS) + 1)}"
    if pace:
        exact = " | ".join(f"{getattr(pace, metric) * scale(metric):.2f}" for metric in METRICS)
        yield f"| the engine's own pace | {exact} | |"
    for tester in tally.testers:
        cells = " | ".join(_mean(tally, tester, metric) for metric in METRICS)
        late_s = tally.mean_late_s(tester)
        yield f"| {tester} | {cells} | {'' if late_s is None else f'{late_s * 1e6:.0f} us'} |"


def _mean(tally: Tally, tester: str, metric: str) -> str:
    found = tally.interval(tester, metric)
    return f"{found.mean * scale(metric):.2f} ± {100 * found.share:.2f} %"


def _differences(tally: Tally) -> Iterator[str]:
    """The second against the first, and whether its interval lies within the margin."""
    yield f"| difference, 90 % interval | {' | '.join(METRICS.values())} |"
    yield f"|---|{'---|' * len(METRICS)}"
    found = {(metric, first, second): interval for metric, first, second, interval in tally.differences()}
    for first, second in dict.fromkeys((first, second) for _, first, second in found):
        cells = []
        for metric in METRICS:
            interval = found[metric, first, second]
            low, high = interval.mean - interval.half_width, interval.mean + interval.half_width
            cells.append(f"{100 * low:+.2f} to {100 * high:+.2f} %: {interval.verdict(tally.target)}")
        yield f"| {second} against {first} | {' | '.join(cells)} |"
