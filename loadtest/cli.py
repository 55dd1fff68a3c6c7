"""`crossover calibrate`: options in, a run folder, a table and an exit code out."""

import asyncio
import secrets
import signal
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import click
import orjson
import uvloop
from rich.console import Console

from loadtest.calibration import Calibration
from loadtest.curves import THROUGHPUT
from loadtest.engines import confirm_same
from loadtest.errors import CalibrationError, Unreachable, Untrusted
from loadtest.folder import Beginning, RunFolder
from loadtest.hardware import Declared, read_hardware
from loadtest.history import History
from loadtest.plan import FULL, QUICK, Plan
from loadtest.progress import ProgressLines
from loadtest.report.words import describe, describe_threshold
from loadtest.result import Result
from loadtest.screen import Screen, make_screen
from loadtest.slo import Slo
from loadtest.subject import apply_threshold, find_subject, restore_policy
from loadtest.target import Target

EXIT_CODES = {"complete": 0, "failed": 2, "untrusted": 3, "unresolved": 4, "regretted": 5}
INTERRUPTED = 130


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
    window_s: float | None
    budget_s: float | None
    repeats: int | None
    accept_wide: bool
    slo: Slo | None
    regret_repeats: int | None
    limits: tuple[str, ...]
    hardware: Declared | None
    resume: Path | None
    max_in_flight: int | None
    max_foreign: int | None
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
    help="What the backends' memory can deliver, to hold times per token against (YAML: docs/calibration.md).",
)
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
      crossover calibrate --resume runs/20260101T000000Z-1a2b

    Exit codes: 0 measured (also when one engine always wins); 2 bad arguments or no gateway; 3 the measurement cannot
    be trusted; 4 no single threshold is right, or it takes more measurements; 5 with the threshold in force requests
    fared worse than on the better engine alone, and the policy before is back; 130 interrupted: --resume goes on.
    """
    options = Options(**values)
    plan = _make_plan(options)
    signal.signal(signal.SIGTERM, _interrupt)
    lines = ProgressLines(sys.stderr) if options.progress == "json" else None
    console = Console(stderr=options.as_json, quiet=options.as_json and lines is not None)
    try:
        with (
            closing(lines or make_screen(console)) as screen,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            result = runner.run(_run(options, plan, screen))
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
    if lines:
        lines.conclude(result, EXIT_CODES[result.status])
    _print_result(result, options, console)
    raise SystemExit(EXIT_CODES[result.status])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends a run as Ctrl-C does, whatever Ctrl-C does just then."""
    signal.raise_signal(signal.SIGINT)


def _make_plan(options: Options) -> Plan:
    plan = QUICK if options.is_quick else FULL
    given = {
        name: getattr(options, name)
        for name in ("levels", "tokens", "window_s", "budget_s", "repeats", "regret_repeats", "slo")
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}  # Any: see Options
    is_bounded = options.max_in_flight is not None
    is_judged = bool(options.limits or options.hardware)
    if options.resume and (changes or options.is_quick or options.accept_wide or is_bounded or is_judged):
        raise click.UsageError("a run that is resumed keeps its plan: --resume goes with no option that changes it")
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


async def _run(options: Options, plan: Plan, screen: Screen) -> Result:
    """A whole run, written to its folder however it ends. Raises CalibrationError if it cannot even begin."""
    target = replace(options.target, key=options.key)
    calibration = await (_resume if options.resume else _begin)(target, options, plan, screen)
    calibration.max_foreign = options.max_foreign
    try:
        result = await calibration.run()
        calibration.folder.write(result)
        result = await _apply(target, result) if options.should_apply else result
        result = await _confirm(target, calibration, result) if result.applied else result
    except CalibrationError as exc:
        result = calibration.break_off("untrusted" if isinstance(exc, Untrusted) else "failed", str(exc))
    except asyncio.CancelledError:
        calibration.folder.write(calibration.break_off("interrupted", "interrupted"))
        raise
    calibration.folder.write(result)
    return result


async def _begin(target: Target, options: Options, plan: Plan, screen: Screen) -> Calibration:
    subject = await find_subject(target, options.model)
    folder, now = _create_folder(options.out), datetime.now(UTC)
    folder.begin(Beginning(now, subject.model, subject.low, subject.high, subject.engines, plan))
    return Calibration(target, subject, plan, folder, screen, now, plan.seed)


async def _resume(target: Target, options: Options, _plan: Plan, screen: Screen) -> Calibration:
    """With the plan, the model and the engines it was begun with. Raises CalibrationError if they are others now."""
    assert options.resume is not None
    folder = RunFolder(options.resume.resolve())
    begun = folder.read_beginning()
    subject = await find_subject(target, begun.model)
    if subject.backends != (begun.low, begun.high):
        raise Unreachable(f"the run compares {begun.low} with {begun.high}; the policy now names {subject.backends}")
    subject = replace(subject, engines=confirm_same(begun.engines, subject.engines))
    history = History.of(folder.recover(), subject.low)
    return Calibration(target, subject, begun.plan, folder, screen, begun.started_at, secrets.randbits(32), history)


async def _apply(target: Target, result: Result) -> Result:
    """With no threshold to apply, nothing is: the policy stays as it is."""
    if result.threshold is None:
        return result
    try:
        return replace(result, applied=await apply_threshold(target, result.subject, result.threshold, result.run))
    except CalibrationError as exc:
        return replace(result, status="failed", failure=str(exc))


async def _confirm(target: Target, calibration: Calibration, result: Result) -> Result:
    """With routing live, where the plan has time for that; a policy that is worse than no policy is taken back."""
    change = result.finding.change if result.finding else None
    if result.threshold is None or change is None or not result.plan.regret_repeats:
        return result
    try:
        losses, check = await calibration.check_regret(result.threshold, change.point)
    except BaseException:  # whoever breaks it off leaves no policy behind that nobody has tried
        await asyncio.shield(restore_policy(target, result.subject))
        raise
    result = replace(result, losses=losses, checks=[*result.checks, check])
    if check.status != "failed":
        return result
    await restore_policy(target, result.subject)
    return replace(result, status="regretted", failure=check.message, threshold=None, applied=None)


def _create_folder(parent: Path) -> RunFolder:
    try:
        return RunFolder.create(parent)
    except OSError as exc:
        raise CalibrationError(f"cannot write to {parent}: {exc.strerror}") from exc


def _print_result(result: Result, options: Options, console: Console) -> None:
    lines = [
        f"crossing   {describe(THROUGHPUT, result)}",
        f"threshold  {describe_threshold(result)}",
        *(f"{check.status:<9}  {check.message}" for check in result.checks if check.status in {"warning", "failed"}),
        f"report     {(options.resume or options.out / result.run) / 'report.html'}",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if options.as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2))
