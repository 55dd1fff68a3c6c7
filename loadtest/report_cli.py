"""`crossover report`: a run's reports again, two runs compared, or published sweeps compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from loadtest.cli_options import gpu_count, gpu_price
from loadtest.client.errors import Unreachable
from loadtest.decide.cost import Cost
from loadtest.report.command import compare, compare_published, rewrite_reports
from loadtest.results.folder import RESULT


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
def report(runs: Sequence[Path], **options: Any) -> None:  # Any: click's
    """One RUN: write report.html, report.md and cells.csv of that calibration again. Two: compare them.

    A RUN is the folder of a calibration, or its result.json. With --import, it compares sweeps that others published.

    \b
    Examples:
      crossover report runs/20260101T000000Z-1a2b
      crossover report runs/20260101T000000Z-1a2b runs/20260201T000000Z-3c4d
      crossover report runs/20260101T000000Z-1a2b --gpu-price '2.50 EUR' --gpu-count triton=2,vllm=2
      crossover report --import curves.json --low trtllm_llama31_fp8 --high vllm_llama31_fp8

    Exit codes: 0 reported, whatever was found; 2 the folder, the file or a tag in it is not what it should be.
    """
    try:
        _refuse_mixtures(runs, options)
        click.echo(_report(runs, options), nl=False)
    except (ValueError, Unreachable) as exc:
        raise click.UsageError(str(exc)) from exc


def _refuse_mixtures(runs: Sequence[Path], options: dict[str, Any]) -> None:  # Any: click's
    """Raises ValueError for arguments that do not go together."""
    if options["source"]:
        if runs or options["as_json"]:
            raise ValueError("--import compares a file's sweeps: no runs and no --json go with it")
        if options["gpu_price"] or options["gpu_count"]:
            raise ValueError("--import compares what others published: no costs go with it")
        return
    if options["low"] or options["high"]:
        raise ValueError("--low and --high name tags of a file: they go with --import")
    if len(runs) not in (1, 2):
        raise ValueError(f"one run or two, or --import FILE; {len(runs) or 'none'} given")
    if options["as_json"] and len(runs) == 1:
        raise ValueError(f"--json is for two runs; what one run found is in its {RESULT}")


def _report(runs: Sequence[Path], options: dict[str, Any]) -> str:  # Any: click's
    if options["source"]:
        return compare_published(options["source"], options["low"], options["high"])
    given = Cost(gpus=options["gpu_count"] or {}, price=options["gpu_price"])
    if len(runs) == 1:
        return "\n".join((*rewrite_reports(runs[0], given), ""))
    return compare(runs[0], runs[1], given, as_json=options["as_json"])
