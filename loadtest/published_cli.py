"""`crossover report`: what published sweeps say, and what is wrong with them."""

from collections.abc import Mapping
from pathlib import Path

import click

from loadtest.published.compare import compare
from loadtest.published.faults import find_faults
from loadtest.published.rows import Sweep, parse
from loadtest.published.text import render


@click.command()
@click.option(
    "--import",
    "source",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A JSON file of sweeps: an object of tags, each a list of rows (docs/calibration.md).",
)
@click.option("--low", required=True, help="Tag of the engine for low load.")
@click.option("--high", required=True, help="Tag of the engine for high load.")
def report(source: Path, low: str, high: str) -> None:
    """Compare two published sweeps: ratios, crossings, and the faults they show.

    \b
    Example:
      crossover report --import curves.json --low trtllm_llama31_fp8 --high vllm_llama31_fp8

    Exit codes: 0 compared, whatever was found; 2 the file or a tag in it is not what it should be.
    """
    try:
        sweeps = parse(source.read_bytes())
    except ValueError as exc:
        raise click.UsageError(f"{source}: {exc}") from exc
    one, other = (_choose(sweeps, tag, option) for tag, option in ((low, "--low"), (high, "--high")))
    try:
        comparisons = compare(one, other)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    click.echo(render(one, other, comparisons, [*find_faults(one), *find_faults(other)]), nl=False)


def _choose(sweeps: Mapping[str, Sweep], tag: str, option: str) -> Sweep:
    if tag not in sweeps:
        raise click.UsageError(f"{option}: the file has no {tag}, only {', '.join(sweeps)}")
    return sweeps[tag]
