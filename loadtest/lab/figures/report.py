"""A run as Markdown: promises compared with measurements, and every figure behind them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.lab.figures import summary as figures
from loadtest.lab.figures.claims import Claim, Pairs, show
from loadtest.lab.figures.machine import Machine
from loadtest.lab.figures.scenarios import SCENARIOS, TRITON
from loadtest.lab.figures.summary import Figure, Summary
from loadtest.report.markdown import draw_table

NOTHING = "-"
MAX_DISTURBANCE = 10.0  # percent of a CPU: the services of an idle machine


@dataclass(frozen=True, slots=True)
class About:
    """The circumstances of a run. `missing`: a line on everything that could not be measured."""

    machine: Machine
    versions: Mapping[str, str]
    repeats: int
    minutes: float
    missing: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        if self.repeats == 1:
            return f"One repeat; {self.minutes:.0f} minutes in all."
        return (
            f"Medians of {self.repeats} interleaved repeats; {self.minutes:.0f} minutes in all. "
            "Pairs: the ratio within each repeat, geometric mean and standard error."
        )


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report shows. `summary`: over all repeats; `repeats`: a summary of each."""

    summary: Summary
    claims: Sequence[Claim]
    about: About
    repeats: Sequence[Summary]

    @property
    def sentences(self) -> str:
        """How the run was made, and whether other processes used the machine."""
        others = self.summary.disturbance_percent
        if others is None or others <= MAX_DISTURBANCE:
            return self.about.sentence
        return (
            f"{self.about.sentence} **Other processes used {others:.0f} % of a CPU in the median measurement**: delays "
            "are longer than they would be, and systems that had to wait look cheaper, because they find several "
            "tokens at once."
        )


@dataclass(frozen=True, slots=True)
class Column:
    """One figure in a table. `against`: the system that a further column has the ratio to."""

    title: str
    figure: Figure
    digits: int = 0
    against: str | None = None


REQUESTS = (
    Column("requests/s", figures.requests_per_s),
    Column("CPU us/request", figures.cpu_us_per_request, 1, "nginx"),
    Column("CPU %", figures.cpu_percent),
    Column("latency p50 us", figures.latency_p50_us),
    Column("p99 us", figures.latency_p99_us),
    Column("engine + client CPU %", figures.bystander_percent),
    Column("others CPU %", figures.other_percent),
)
TOKENS = (
    Column("tokens/s", figures.tokens_per_s),
    Column("CPU us/token", figures.cpu_us_per_token, 2, "nginx"),
    Column("CPU %", figures.cpu_percent),
    Column("delay p50 us", figures.delay_p50_us),
    Column("p99 us", figures.delay_p99_us),
    Column("gap p99 us", figures.gap_p99_us),
    Column("tokens/read", figures.tokens_per_read, 2),
    Column("engine + client CPU %", figures.bystander_percent),
    Column("others CPU %", figures.other_percent),
)


def render(run: Run, image: str | None = None) -> str:
    """Renders a run. `image`: path of the plot, relative to the page."""
    plot = [f"![CPU per streamed token by gateway and number of streams]({image})"] if image else []
    parts = [_head(run), claims_table(run), *plot, *_scenario_parts(run.summary), *_notes(run)]
    return "\n\n".join(parts) + "\n"


def _head(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.about.versions.items() if version)
    return f"Machine: {run.about.machine}.\n\nVersions: {versions}.\n\n{run.sentences}"


def claims_table(run: Run, only_measured: bool = False) -> str:
    """Draws a row per promise; `only_measured` leaves out those that this run did not measure."""
    rows = []
    for claim in run.claims:
        value = claim.measure(run.summary)
        if value is not None or not only_measured:
            measured = NOTHING if value is None else show(value, claim.unit)
            pairs = Pairs.of(claim, run.repeats) or NOTHING
            rows.append([claim.number, claim.text, claim.verdict(value), measured, str(pairs), claim.bound_text])
    return _draw(["", "promise", "verdict", "measured", "pairs", "bound"], rows, 3)


def _scenario_parts(summary: Summary) -> Iterator[str]:
    for name in summary.scenarios:
        systems = [system for system in summary.systems if summary.repeats(name, system)]
        is_whole = all(summary.median(name, system, figures.tokens_per_s) is None for system in systems)
        about = SCENARIOS[name].about if name in SCENARIOS else TRITON.about
        yield f"### {name}: {about}\n\n{_scenario_table(summary, name, systems, REQUESTS if is_whole else TOKENS)}"


def _scenario_table(summary: Summary, scenario: str, systems: Sequence[str], columns: Sequence[Column]) -> str:
    head = ["system"]
    for column in columns:
        head += [column.title, *([f"/ {column.against}"] if column.against else [])]
    return _draw(head, [[system, *_cells(summary, scenario, system, columns)] for system in systems])


def _cells(summary: Summary, scenario: str, system: str, columns: Sequence[Column]) -> Iterator[str]:
    is_direct = system == "direct"
    for column in columns:
        is_empty = is_direct and column.title.startswith("CPU")
        yield NOTHING if is_empty else _number(summary.median(scenario, system, column.figure), column.digits)
        if column.against:
            ratio = None if is_direct else summary.ratio(scenario, column.figure, system, column.against)
            yield _number(ratio, 2)


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _notes(run: Run) -> Iterator[str]:
    lines = [*run.about.missing]
    lines += [
        f"{r.scenario}, {r.system}, repeat {r.repeat + 1} does not count: {r.complaint}" for r in run.summary.void
    ]
    if lines:
        yield "Left out:\n\n" + "\n".join(f"- {line}" for line in lines)


def _draw(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """Draws a Markdown table; columns after the first `text_columns` are right-aligned."""
    return "\n".join(draw_table(head, rows, [" --- "] * text_columns + [" ---: "] * (len(head) - text_columns)))
