"""runs/<id>/ of a calibration of several shapes: a run's folder for each, and shapes.html and shapes.md beside them.

In: plans. Out: their folders and the comparison. Raises OSError where it cannot be written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from loadtest.report.shape_report import render_shapes_html, render_shapes_markdown
from loadtest.results.folder import RunFolder, name_run, read_to_resume
from loadtest.results.plan import Plan
from loadtest.results.result import Result
from loadtest.results.shapes import Shape, ShapeComparison, compare_shapes

PLANS, PAGE = "shapes.json", "shapes.html"
_PLANS = TypeAdapter(tuple[Plan, ...])


@dataclass(frozen=True, slots=True)
class ShapeSeries:
    """The plans of a series, in the order measured. Its threshold is that of the first."""

    path: Path
    plans: tuple[Plan, ...]

    @classmethod
    def create(cls, parent: Path, plans: Sequence[Plan]) -> "ShapeSeries":
        series = cls(parent / name_run(), tuple(plans))
        series.path.mkdir(parents=True)
        (series.path / PLANS).write_bytes(orjson.dumps(series.plans, option=orjson.OPT_INDENT_2) + b"\n")
        return series

    @classmethod
    def read(cls, path: Path) -> "ShapeSeries | None":
        """Reads a series; None if `path` is another folder. Raises Unreachable if it is one of another version."""
        return cls(path, read_to_resume(path / PLANS, _PLANS)) if (path / PLANS).exists() else None

    def folder(self, plan: Plan) -> RunFolder:
        """Returns the folder of a plan's run. A run's name tags its requests, so it includes the name of the series."""
        return RunFolder(self.path / f"{self.path.name}-{Shape.of(plan)}")

    def conclude(self, results: Sequence[Result]) -> ShapeComparison:
        """Writes both reports on the results so far."""
        comparison = compare_shapes(results)
        folders = {Shape.of(plan): self.folder(plan).run for plan in self.plans}
        (self.path / "shapes.md").write_text(render_shapes_markdown(self.path.name, comparison, folders))
        (self.path / PAGE).write_text(render_shapes_html(self.path.name, comparison, folders))
        return comparison
