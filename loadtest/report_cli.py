"""`crossover report`: a run's reports again, two runs compared, or what published sweeps say and their faults."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import orjson

from loadtest.comparison import compare_runs
from loadtest.curves import THROUGHPUT
from loadtest.errors import Unreachable
from loadtest.folder import PAGE, RESULT, RunFolder
from loadtest.published.compare import compare
from loadtest.published.faults import find_faults
from loadtest.published.rows import Sweep, parse
from loadtest.published.text import render
from loadtest.report.compared import render_comparison
from loadtest.report.words import describe, describe_threshold
from loadtest.result import Result


@dataclass(frozen=True, slots=True)
class Options:
    runs: tuple[Path, ...]
    as_json: bool
    source: Path | None
    low: str | None
    high: str | None


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
def report(runs: tuple[Path, ...], as_json: bool, source: Path | None, low: str | None, high: str | None) -> None:
    """One RUN: write report.html, report.md and cells.csv of that calibration again. Two: compare them.

    A RUN is the folder of a calibration, or its result.json. With --import, it compares sweeps that others published.

    \b
    Examples:
      crossover report runs/20260101T000000Z-1a2b
      crossover report runs/20260101T000000Z-1a2b runs/20260201T000000Z-3c4d
      crossover report --import curves.json --low trtllm_llama31_fp8 --high vllm_llama31_fp8

    Exit codes: 0 told, whatever was found; 2 the folder, the file or a tag in it is not what it should be.
    """
    options = Options(runs, as_json, source, low, high)
    if options.source is not None:
        click.echo(_compare_published(options, options.source), nl=False)
        return
    _confirm_runs(options)
    if len(runs) == 1:
        _tell_again(runs[0])
    else:
        _compare(runs[0], runs[1], as_json)


def _confirm_runs(options: Options) -> None:
    if options.low or options.high:
        raise click.UsageError("--low and --high name tags of a file: they go with --import")
    if not 1 <= len(options.runs) <= 2:
        raise click.UsageError(f"one run or two, or --import FILE; {len(options.runs) or 'none'} given")
    if options.as_json and len(options.runs) == 1:
        raise click.UsageError(f"--json is for two runs; what one run found is in its {RESULT}")


def _tell_again(path: Path) -> None:
    folder, result = _read(path)
    try:
        folder.write_reports(result)
    except OSError as exc:
        raise click.UsageError(f"cannot write to {folder.path}: {exc.strerror}") from exc
    click.echo(f"crossing   {describe(THROUGHPUT, result)}")
    click.echo(f"threshold  {describe_threshold(result)}")
    click.echo(f"report     {folder.path / PAGE}")


def _compare(a: Path, b: Path, as_json: bool) -> None:
    comparison = compare_runs(_read(a)[1], _read(b)[1])
    if as_json:
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
