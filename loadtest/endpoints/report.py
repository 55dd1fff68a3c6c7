"""The comparison as Markdown, which a terminal shows as well as a page does. Pure."""

from collections.abc import Iterator, Sequence

from loadtest.endpoints.summary import FIGURES, THROUGHPUT, Ratio, Row
from loadtest.plan import Plan
from loadtest.report.words import show_ms, show_rate


def write_report(rows: Sequence[Row], plan: Plan, flaws: Sequence[str], batch: int | None = None) -> str:
    """`batch`: how often each stream asked; None for a steady load."""
    return "\n".join([*_heading(rows, plan, batch), "", *_table(rows), *_doubts(flaws), ""])


def _heading(rows: Sequence[Row], plan: Plan, batch: int | None) -> Iterator[str]:
    rounds = max((row.rounds for row in rows), default=0)
    first = rows[0].endpoint if rows else "-"
    load = f"windows of {plan.window_s:g} s at least"
    if batch is not None:
        load = f"all streams begin together and ask {_count(batch, 'time')}"
    yield (
        f"Answers of {plan.tokens} tokens, prompts of {plan.prompt_words} words, {load}; means of "
        f"{_count(rounds, 'round')}, in each of which the endpoints took turns. Ratios are to {first}, with 95 % "
        "intervals (Student's t of the logarithms, round by round)."
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    headings = ["in flight", "endpoint", *FIGURES, "tok/s, ratio", "TTFT p50, ratio", "client's CPU"]
    yield f"| {' | '.join(headings)} |"
    yield f"|---:|---|{'---:|' * (len(headings) - 2)}"
    for row in rows:
        figures = [_show(name, value) for name, value in row.figures.items()]
        ratios = [_show_ratio(row.throughput), _show_ratio(row.ttft)]
        yield f"| {row.level} | {row.endpoint} | {' | '.join([*figures, *ratios])} | {row.client_cpu:.0%} |"


def _show(name: str, value: float | None) -> str:
    if value is None:
        return "n/a"
    return show_rate(value) if name == THROUGHPUT else f"{show_ms(value)}"


def _show_ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "n/a"
    if ratio.high == float("inf"):
        return f"{ratio.mean:.3f}"
    return f"{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _doubts(flaws: Sequence[str]) -> Iterator[str]:
    if flaws:
        yield ""
        yield f"Windows that were not steady: {len(flaws)}."
        yield from (f"- {flaw}" for flaw in flaws)
