"""`crossover report`: a run's reports again, two runs compared, or what published sweeps say and their faults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import orjson

from loadtest.comparison import compare_runs
from loadtest.cost import NO_COST, Cost, Price, find_flaw
from loadtest.cost_options import gpu_count, gpu_price, make_cost
from loadtest.curves import THROUGHPUT
from loadtest.errors import Unreachable
from loadtest.folder import PAGE, RESULT, RunFolder
from loadtest.published.compare import compare
from loadtest.published.faults import find_faults
from loadtest.published.rows import Sweep, parse
from loadtest.published.text import render
from loadtest.report.compared import render_comparison
from loadtest.report.cost import describe_costs
from loadtest.report.words import describe, describe_threshold
from loadtest.result import Result


@dataclass(frozen=True, slots=True)
class Options:
    runs: tuple[Path, ...]
    as_json: bool
    source: Path | None
    low: str | None
    high: str | None
    gpu_price: Price | None
    gpu_count: Mapping[str, int] | None


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN [RUN]]")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison of two runs as JSON.")
@click.option(
    "--import",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file of sweeps: an object of tags, each a list of rows (docs/calibration.md).",
)
@click.option("--low", help="With --import: tag of the engine for low load.")
@click.option("--high", help="With --import: tag of the engine for high load.")
@gpu_price
@gpu_count
def report(**values: Any) -> None:  # Any: click's; Options gives the types
    """One RUN: write report.html, report.md and cells.csv of that calibration again. Two: compare them.

    A RUN is the folder of a calibration, or its result.json. With --import, it compares sweeps that others published.

    \b
    Examples:
      crossover report runs/20260101T000000Z-1a2b
      crossover report runs/20260101T000000Z-1a2b runs/20260201T000000Z-3c4d
      crossover report runs/20260101T000000Z-1a2b --gpu-price '2.50 EUR' --gpu-count triton=2,vllm=2
      crossover report --import curves.json --low trtllm_llama31_fp8 --high vllm_llama31_fp8

    Exit codes: 0 told, whatever was found; 2 the folder, the file or a tag in it is not what it should be.
    """
    options = Options(**values)
    if options.source is not None:
        click.echo(_compare_published(options, options.source), nl=False)
        return
    _confirm_runs(options)
    if len(options.runs) == 1:
        _tell_again(options)
    else:
        _compare(options)


def _confirm_runs(options: Options) -> None:
    if options.low or options.high:
        raise click.UsageError("--low and --high name tags of a file: they go with --import")
    if not 1 <= len(options.runs) <= 2:
        raise click.UsageError(f"one run or two, or --import FILE; {len(options.runs) or 'none'} given")
    if options.as_json and len(options.runs) == 1:
        raise click.UsageError(f"--json is for two runs; what one run found is in its {RESULT}")


def _tell_again(options: Options) -> None:
    folder, result = _read(options.runs[0])
    result = _price(result, options)
    try:
        folder.write_reports(result)
    except OSError as exc:
        raise click.UsageError(f"cannot write to {folder.path}: {exc.strerror}") from exc
    click.echo(f"crossing   {describe(THROUGHPUT, result)}")
    click.echo(f"threshold  {describe_threshold(result)}")
    for sentence in describe_costs(result):
        click.echo(f"cost       {sentence}")
    click.echo(f"report     {folder.path / PAGE}")


def _price(result: Result, options: Options) -> Result:
    """With the price and the GPUs of this command where it was told them, else with those of the run."""
    plan, before = result.plan, result.plan.cost or NO_COST
    given = Cost(gpus=options.gpu_count or before.gpus, price=options.gpu_price or before.price)
    cost = make_cost(given.price, given.gpus or None, plan.hardware)
    if cost and (flaw := find_flaw(cost, plan.hardware or {}, result.subject.backends)):
        raise click.UsageError(f"--gpu-count: {flaw}")
    return replace(result, plan=replace(plan, cost=cost))


def _compare(options: Options) -> None:
    a, b = (_price(_read(path)[1], options) for path in options.runs)
    comparison = compare_runs(a, b)
    if options.as_json:
        click.echo(orjson.dumps(comparison.to_json(), option=orjson.OPT_INDENT_2))
    else:
        click.echo(render_comparison(comparison), nl=False)


def _read(path: Path) -> tuple[RunFolder, Result]:
    folder = RunFolder(path.parent if path.name == RESULT else path)
    try:
        return folder, folder.read_result()
    except Unreachable as exc:
        raise click.UsageError(str(exc)) from exc


def _compare_published(options: Options, source: Path) -> str:
    if options.runs or options.as_json:
        raise click.UsageError("--import compares a file's sweeps: no runs and no --json go with it")
    if options.gpu_price or options.gpu_count:
        raise click.UsageError("--import compares what others published: no costs go with it")
    try:
        sweeps = parse(source.read_bytes())
    except ValueError as exc:
        raise click.UsageError(f"{source}: {exc}") from exc
    one, other = (_choose(sweeps, tag, name) for tag, name in ((options.low, "--low"), (options.high, "--high")))
    try:
        comparisons = compare(one, other)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return render(one, other, comparisons, [*find_faults(one), *find_faults(other)])


def _choose(sweeps: Mapping[str, Sweep], tag: str | None, option: str) -> Sweep:
    if tag is None:
        raise click.UsageError(f"--import needs {option}: one of {', '.join(sweeps)}")
    if tag not in sweeps:
        raise click.UsageError(f"{option}: the file has no {tag}, only {', '.join(sweeps)}")
    return sweeps[tag]
