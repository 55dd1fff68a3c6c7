"""What `crossover calibrate` does: one run, or one for each of several shapes and then their comparison.

In: the values of its options, and plans. Out: results, with lines about them on a console.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import uvloop
from rich.console import Console

from loadtest.admin import find_system
from loadtest.calibration.cell_meter import Site
from loadtest.calibration.options import Options
from loadtest.calibration.progress_display import open_progress
from loadtest.calibration.progress_json import JsonProgress
from loadtest.calibration.run import RunOptions, run
from loadtest.calibration.shape_series import PAGE, ShapeSeries
from loadtest.client.errors import MeasurementError
from loadtest.report.command import summarise_result
from loadtest.report.shape_report import describe_shapes
from loadtest.results.folder import RunFolder
from loadtest.results.plan import Plan
from loadtest.results.result import Result
from loadtest.results.shapes import Shape

EXIT_CODES = {"complete": 0, "failed": 2, "untrusted": 3, "unresolved": 4, "regretted": 5}
GRAVEST = (2, 3, 5, 4, 0)  # of several shapes: the first of these that one of them ended with


def calibrate(options: Options, plans: Sequence[Plan], console: Console, lines: JsonProgress | None) -> list[Result]:
    """Runs each plan and returns the results. Without `lines`, `console` shows progress. Raises MeasurementError."""
    run_options = RunOptions(
        site=Site(replace(options["target"], key=options["key"]), options["max_foreign"], options["gpus"]),
        plan=plans[0],
        resumed=RunFolder(options["resume"].resolve()) if options["resume"] else None,
        **{name: options[name] for name in ("model", "out", "should_apply", "kind", "processes")},
    )
    series = _find_series(run_options, plans)
    return _measure_all(run_options, series, console, lines) if series else [_measure(run_options, console, lines)]


def find_exit_code(results: Sequence[Result]) -> int:
    return min(map(_find_exit_code, results), key=GRAVEST.index)


def _find_exit_code(result: Result) -> int:
    """Returns the status's code. A policy that needs no threshold may be in force where no single one is right."""
    return 0 if result.status == "unresolved" and result.applied else EXIT_CODES[result.status]


def print_lines(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _find_series(options: RunOptions, plans: Sequence[Plan]) -> ShapeSeries | None:
    """Returns the series in the folder to be resumed, or a new one for several shapes; None for a single run."""
    if options.resumed is not None:
        return ShapeSeries.read(options.resumed.path)
    if len(plans) == 1:
        return None
    uvloop.run(find_system(options.site.target, options.model))  # before anything is written
    try:
        return ShapeSeries.create(options.out, plans)
    except OSError as exc:
        raise MeasurementError(f"cannot write to {options.out}: {exc.strerror}") from exc


def _measure_all(
    options: RunOptions, series: ShapeSeries, console: Console, lines: JsonProgress | None
) -> list[Result]:
    results: list[Result] = []
    try:
        for number, plan in enumerate(series.plans):
            print_lines(console, f"shape {Shape.of(plan)}, {number + 1} of {len(series.plans)}")
            folder = series.folder(plan)
            own = replace(options, plan=plan, folder=folder, should_apply=options.should_apply and number == 0)
            own = replace(own, resumed=folder if folder.has_begun else None)
            results.append(folder.read_result() if folder.is_final else _measure(own, console, lines))
    finally:
        if results:
            sentences = (f"shapes     {sentence}" for sentence in describe_shapes(series.conclude(results)))
            print_lines(console, *sentences, f"report     {series.path / PAGE}")
    return results


def _measure(options: RunOptions, console: Console, lines: JsonProgress | None) -> Result:
    with closing(lines or open_progress(console)) as progress:
        result = uvloop.run(run(options, progress))
    if lines:
        lines.conclude(result, _find_exit_code(result))
    folder = options.resumed or options.folder or RunFolder(options.out / result.run)
    *findings, report = summarise_result(folder.path, result)
    checks = (f"{check.status:<9}  {check.message}" for check in result.checks if check.status in {"warning", "failed"})
    print_lines(console, *findings, *checks, report)
    return result
