"""What `crossover report` does: one run's reports written again, two runs compared, published sweeps compared.

Raises ValueError, or Unreachable for a folder that has no result, in words for whoever gave the command.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson

from loadtest.decide.cost import NO_COST, Cost
from loadtest.report.comparison_text import render_comparison
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.published import render
from loadtest.report.published_sweeps import Sweep, parse
from loadtest.report.spreadsheet import render_csv
from loadtest.report.text import describe, describe_costs, describe_node, describe_threshold
from loadtest.results.comparison import compare_runs
from loadtest.results.curves import THROUGHPUT
from loadtest.results.folder import RESULT, RunFolder
from loadtest.results.hardware import list_gpus
from loadtest.results.result import Result

PAGE = "report.html"


def write_reports(path: Path, result: Result) -> None:
    """Writes the files that are made from a result into its folder. Raises OSError if that cannot be written."""
    (path / "cells.csv").write_text(render_csv(result.cells, result.plan.known_cost))
    (path / "report.md").write_text(render_markdown(result))
    (path / PAGE).write_text(render_html(result))


def summarise_result(folder: Path, result: Result) -> list[str]:
    """Returns the lines that a terminal shows about a result whose reports are in `folder`."""
    return [
        f"crossing   {describe(THROUGHPUT, result)}",
        f"threshold  {describe_threshold(result)}",
        *([f"node       {describe_node(result)}"] if result.node else []),
        *(["applied    nothing, the policy stays as it is"] if result.applied is None else []),
        *(f"cost       {sentence}" for sentence in describe_costs(result)),
        f"report     {folder / PAGE}",
    ]


def rewrite_reports(run: Path, given: Cost) -> list[str]:
    """Writes the reports again; returns the lines that summarise them. `given`: costs in place of the run's own."""
    folder, result = _read(run, given)
    try:
        write_reports(folder.path, result)
    except OSError as exc:
        raise ValueError(f"cannot write to {folder.path}: {exc.strerror}") from exc
    return summarise_result(folder.path, result)


def compare(a: Path, b: Path, given: Cost, *, as_json: bool) -> str:
    comparison = compare_runs(_read(a, given)[1], _read(b, given)[1])
    if as_json:
        return orjson.dumps(comparison.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n"
    return render_comparison(comparison)


def compare_published(source: Path, low: str | None, high: str | None) -> str:
    """Compares two published sweeps. `low` and `high`: their tags in the file `source`."""
    try:
        sweeps = parse(source.read_bytes())
    except ValueError as exc:
        raise ValueError(f"{source}: {exc}") from exc
    return render(_choose(sweeps, low, "--low"), _choose(sweeps, high, "--high"))


def _read(path: Path, given: Cost) -> tuple[RunFolder, Result]:
    """Reads a run. `path`: its folder, or its result.json. The result has the costs that were given, else its own."""
    folder = RunFolder(path.parent if path.name == RESULT else path)
    result = folder.read_result()
    plan, own = result.plan, result.plan.cost or NO_COST
    cost = Cost(gpus=given.gpus or own.gpus, price=given.price or own.price)
    declared = list_gpus(plan.hardware)
    cost.with_declared(declared).check()
    if contradiction := cost.find_contradiction(declared, result.system.backends):
        raise ValueError(f"--gpu-count: {contradiction}")
    return folder, replace(result, plan=replace(plan, cost=None if cost == NO_COST else cost))


def _choose(sweeps: Mapping[str, Sweep], tag: str | None, option: str) -> Sweep:
    if tag is None:
        raise ValueError(f"--import needs {option}: one of {', '.join(sweeps)}")
    if tag not in sweeps:
        raise ValueError(f"{option}: the file has no {tag}, only {', '.join(sweeps)}")
    return sweeps[tag]
