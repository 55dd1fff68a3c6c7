"""`crossover calibrate`: options in, a run folder, a table and an exit code out."""

import asyncio
import secrets
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click
import orjson
import uvloop
from rich.console import Console

from loadtest.cost import Price
from loadtest.cost_options import gpu_count, gpu_price, make_cost
from loadtest.curves import THROUGHPUT
from loadtest.errors import CalibrationError
from loadtest.folder import PAGE as RUN_PAGE
from loadtest.folder import RunFolder
from loadtest.hardware import Declared, read_hardware
from loadtest.plan import FULL, QUICK, Plan
from loadtest.progress import ProgressLines
from loadtest.report.cost import describe_costs
from loadtest.report.shapes import describe_contrast
from loadtest.report.words import describe, describe_threshold
from loadtest.result import Result
from loadtest.runs import Order, run
from loadtest.screen import make_screen
from loadtest.series import PAGE as SHAPES_PAGE
from loadtest.series import Series
from loadtest.shapes import Shape
from loadtest.slo import Slo
from loadtest.subject import find_subject
from loadtest.target import Target

EXIT_CODES = {"complete": 0, "failed": 2, "untrusted": 3, "unresolved": 4, "regretted": 5}
INTERRUPTED = 130
GRAVEST = (2, 3, 5, 4, 0)  # of several shapes: the first of these that one of them ended with
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Options:
    target: Target
    key: str | None
    model: str | None
    is_quick: bool
    should_apply: bool
    out: Path
    levels: tuple[int, ...] | None
    tokens: int | None
    shapes: tuple[Shape, ...]
    window_s: float | None
    budget_s: float | None
    repeats: int | None
    accept_wide: bool
    slo: Slo | None
    regret_repeats: int | None
    limits: tuple[str, ...]
    hardware: Declared | None
    gpu_price: Price | None
    gpu_count: Mapping[str, int] | None
    resume: Path | None
    max_in_flight: int | None
    max_foreign: int | None
    processes: int
    gpus: Target | None
    progress: str
    as_json: bool


def parse_target(_ctx: click.Context, _param: click.Parameter, url: str) -> Target:
    try:
        return Target.parse(url)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _parse_levels(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(level) for level in text.split(",")) if text else None
    except ValueError as exc:
        raise click.BadParameter("whole numbers with commas between them, like 1,2,4,8") from exc


def _parse_gpus(ctx: click.Context, param: click.Parameter, url: str | None) -> Target | None:
    return parse_target(ctx, param, url) if url else None


def _parse_shapes(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[Shape, ...]:
    try:
        shapes = tuple(map(Shape.parse, texts))
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    if len(set(shapes)) < len(shapes):
        raise click.BadParameter("every shape once")
    return shapes


def parse_slo(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Slo | None:
    try:
        return Slo.parse(text) if text else None
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _parse_hardware(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Declared | None:
    try:
        return read_hardware(path) if path else None
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


@click.command()
@click.option(
    "--url",
    "target",
    default="http://127.0.0.1:8080",
    envvar="CROSSOVER_URL",
    callback=parse_target,
    show_default=True,
    show_envvar=True,
    help="The gateway.",
)
@click.option("--key", envvar="CROSSOVER_OPERATOR_KEY", show_envvar=True, help="Its operator key, if it has one.")
@click.option("--model", help="Which model; needed when the gateway serves several.")
@click.option("--quick", "is_quick", is_flag=True, help="Answers of 32 tokens and short windows: about three minutes.")
@click.option("--apply", "should_apply", is_flag=True, help="Set the live policy to the threshold found.")
@click.option(
    "--out", type=click.Path(path_type=Path), default="runs", show_default=True, help="Where the run's folder goes."
)
@click.option("--levels", callback=_parse_levels, help="Requests in flight to measure at.  [default: 1,2,4,...,128]")
@click.option("--tokens", type=int, help="Exact length of every answer.  [default: 256, quick 32]")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_parse_shapes,
    metavar="WORDSxTOKENS",
    help="Words of each prompt and exact length of each answer, like 512x64; several are calibrated in turn, and the "
    "threshold is the first one's.  [default: 48x256, quick 12x32]",
)
@click.option("--window", "window_s", type=float, help="Least seconds of each measurement.  [default: 20, quick 2.5]")
@click.option(
    "--budget",
    "budget_s",
    type=float,
    help="Refine no longer than this many seconds from the start.  [default: quick 160]",
)
@click.option("--repeats", type=int, help="Pairs at every level before refinement, at least 2.  [default: 3, quick 2]")
@click.option("--slo", callback=parse_slo, help="Count goodput by these limits in seconds, like ttft=0.5,tpot=0.03.")
@click.option("--accept-wide", is_flag=True, help="A threshold even where the crossing is known only vaguely.")
@click.option(
    "--regret",
    "regret_repeats",
    type=click.IntRange(0),
    help="After --apply, try the threshold with routing live so often.  [default: 2, quick 0]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="How sound the measurement has to be, like client_cpu=0.9; docs/calibration.md has them all.",
)
@click.option(
    "--hardware",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=_parse_hardware,
    help="What the backends run on and what their engines do not tell of themselves (YAML: docs/calibration.md).",
)
@gpu_price
@gpu_count
@click.option(
    "--resume",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Go on with the run in this folder, by its own plan: nothing is measured twice.",
)
@click.option("--max-in-flight", type=click.IntRange(min=1), help="Leave out levels above this.")
@click.option(
    "--max-foreign",
    type=click.IntRange(min=0),
    help="Begin no measurement while more requests of others than this are in flight; wait instead.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Share the streams out to so many processes, where one core cannot read as fast as a backend sends.",
)
@click.option(
    "--gpus",
    metavar="URL",
    callback=_parse_gpus,
    help="Page of the node's DCGM exporter, like http://node:9400/metrics: power, clocks and memory go into the cells.",
)
@click.option(
    "--progress",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="json: one JSON object a line on stderr, for programs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout; progress goes to stderr.")
def calibrate(**values: Any) -> None:  # Any: click's; Options gives the types
    """Measure both engines through the gateway, find the load at which they cross, set the threshold.

    Every request decodes exactly the same number of tokens on either engine, or the run is refused. The threshold
    holds for that length of answer.

    \b
    Examples:
      crossover calibrate --quick --apply
      crossover calibrate --url http://gpu-node:8080 --tokens 512 --out /var/lib/crossover/runs
      crossover calibrate --shape 200x250 --shape 2000x50 --shape 50x1000
      crossover calibrate --resume runs/20260101T000000Z-1a2b

    Exit codes: 0 measured (also when one engine always wins); 2 bad arguments or no gateway; 3 the measurement cannot
    be trusted; 4 no single threshold is right, or it takes more measurements; 5 with the threshold in force requests
    fared worse than on the better engine alone, and the policy before is back; 130 interrupted: --resume goes on.
    """
    options = Options(**values)
    plans = _make_plans(options)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's shell starts what ends in & so (POSIX, 2.11)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    lines = ProgressLines(sys.stderr) if options.progress == "json" else None
    console = Console(stderr=options.as_json, quiet=options.as_json and lines is not None)
    try:
        results = _measure_all(options, plans, console, lines)
    except KeyboardInterrupt:
        if lines:
            lines.end("interrupted", INTERRUPTED)
        console.print("interrupted; the cells measured so far are kept: --resume goes on from them", highlight=False)
        raise SystemExit(INTERRUPTED) from None
    except CalibrationError as exc:
        if lines:
            lines.end("failed", exc.exit_code, str(exc))
        else:
            click.echo(f"Error: {exc}", err=True)
        raise SystemExit(exc.exit_code) from None
    if options.as_json:
        documents = [result.to_json() for result in results]
        click.echo(orjson.dumps(documents[0] if len(documents) == 1 else documents, option=orjson.OPT_INDENT_2))
    raise SystemExit(min((EXIT_CODES[result.status] for result in results), key=GRAVEST.index))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does, whatever Ctrl-C does just then."""
    signal.raise_signal(signal.SIGINT)


def _make_plans(options: Options) -> tuple[Plan, ...]:
    """One for each shape; that of a run to be resumed does not count."""
    plan = _make_plan(options)
    shapes = options.shapes or (Shape.of(plan),)
    return tuple(replace(plan, prompt_words=shape.prompt_words, tokens=shape.tokens) for shape in shapes)


def _make_plan(options: Options) -> Plan:
    plan = QUICK if options.is_quick else FULL
    given = {
        name: getattr(options, name)
        for name in ("levels", "tokens", "window_s", "budget_s", "repeats", "regret_repeats", "slo")
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}  # Any: see Options
    if cost := make_cost(options.gpu_price, options.gpu_count, options.hardware):
        changes["cost"] = cost
    is_bounded = options.max_in_flight is not None
    is_judged = bool(options.limits or options.hardware)
    is_changed = bool(changes or options.shapes or options.is_quick or options.accept_wide)
    if options.resume and (is_changed or is_bounded or is_judged):
        raise click.UsageError("a run that is resumed keeps its plan: --resume goes with no option that changes it")
    if options.shapes and options.tokens is not None:
        raise click.UsageError("--shape says how long answers are: it goes without --tokens")
    if options.accept_wide:
        changes["widest"] = None
    if options.max_in_flight is not None:
        changes["levels"] = tuple(level for level in options.levels or plan.levels if level <= options.max_in_flight)
    try:
        # A new seed each time: prompts of an earlier run may still lie in an engine's prefix cache.
        limits = plan.limits.changed(options.limits)
        return replace(plan, seed=secrets.randbits(32), limits=limits, hardware=options.hardware, **changes)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def _measure_all(
    options: Options, plans: tuple[Plan, ...], console: Console, lines: ProgressLines | None
) -> list[Result]:
    """One run, or one for each shape and what they say together."""
    target = replace(options.target, key=options.key)
    order = Order(
        target=target,
        model=options.model,
        plan=plans[0],
        out=options.out,
        begun=RunFolder(options.resume.resolve()) if options.resume else None,
        should_apply=options.should_apply,
        max_foreign=options.max_foreign,
        processes=options.processes,
        exporter=options.gpus,
    )
    series = _find_series(options, order, plans)
    if series is None:
        return [_measure(order, console, lines)]
    results: list[Result] = []
    try:
        for number, plan in enumerate(series.plans):
            console.print(f"shape {Shape.of(plan)}, {number + 1} of {len(series.plans)}", highlight=False)
            place = series.folder(plan)
            ordered = replace(order, plan=plan, begun=place if place.is_begun else None, place=place)
            ordered = replace(ordered, should_apply=order.should_apply and number == 0)
            results.append(place.read_result() if place.is_over else _measure(ordered, console, lines))
    finally:
        if results:
            _print_contrast(series, results, console)
    return results


def _find_series(options: Options, order: Order, plans: tuple[Plan, ...]) -> Series | None:
    """A new one where there are several shapes, that of the folder to be resumed, or none."""
    if order.begun is not None:
        return Series.read(order.begun.path)
    if len(plans) == 1:
        return None
    _run(find_subject(order.target, order.model))  # before anything is written
    try:
        return Series.create(options.out, plans)
    except OSError as exc:
        raise CalibrationError(f"cannot write to {options.out}: {exc.strerror}") from exc


def _measure(order: Order, console: Console, lines: ProgressLines | None) -> Result:
    with closing(lines or make_screen(console)) as screen:
        result = _run(run(order, screen))
    if lines:
        lines.conclude(result, EXIT_CODES[result.status])
    folder = order.begun or order.place or RunFolder(order.out / result.run)
    _print_result(result, folder, console)
    return result


def _run(work: Coroutine[Any, Any, Answer]) -> Answer:  # Any: what a coroutine of asyncio's yields is its own affair
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _print_result(result: Result, folder: RunFolder, console: Console) -> None:
    _print_lines(
        console,
        f"crossing   {describe(THROUGHPUT, result)}",
        f"threshold  {describe_threshold(result)}",
        *(f"cost       {sentence}" for sentence in describe_costs(result)),
        *(f"{check.status:<9}  {check.message}" for check in result.checks if check.status in {"warning", "failed"}),
        f"report     {folder.path / RUN_PAGE}",
    )


def _print_contrast(series: Series, results: Sequence[Result], console: Console) -> None:
    contrast = series.conclude(results)
    sentences = (f"shapes     {sentence}" for sentence in describe_contrast(contrast))
    _print_lines(console, *sentences, f"report     {series.path / SHAPES_PAGE}")


def _print_lines(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
