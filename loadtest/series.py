"""runs/<id>/ of a calibration of several shapes: a run's folder for each, and what they say together.

In: plans. Out: their folders, and shapes.html and shapes.md. OSError where it cannot be written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from loadtest.errors import Unreachable
from loadtest.folder import RunFolder, name_run
from loadtest.plan import Plan
from loadtest.report.shapes import render_shapes_html, render_shapes_markdown
from loadtest.result import Result
from loadtest.shapes import Contrast, Shape, contrast_shapes

PLANS, PAGE = "shapes.json", "shapes.html"
PLAN_LISTS = TypeAdapter(tuple[Plan, ...])


@dataclass(frozen=True, slots=True)
class Series:
    """Plans in the order measured. The first one's threshold is the one that counts."""

    path: Path
    plans: tuple[Plan, ...]

    @classmethod
    def create(cls, parent: Path, plans: Sequence[Plan]) -> "Series":
        series = cls(parent / name_run(), tuple(plans))
        series.path.mkdir(parents=True)
        (series.path / PLANS).write_bytes(orjson.dumps(series.plans, option=orjson.OPT_INDENT_2) + b"\n")
        return series

    @classmethod
    def read(cls, path: Path) -> "Series | None":
        """None if `path` is the folder of something else. Raises Unreachable if it is one of another version's."""
        if not (path / PLANS).exists():
            return None
        try:
            return cls(path, PLAN_LISTS.validate_json((path / PLANS).read_bytes()))
        except (OSError, ValidationError) as exc:
            raise Unreachable(f"{path} is not the folder of a run that can be resumed: {exc}") from exc

    def folder(self, plan: Plan) -> RunFolder:
        """A run's name is its tag on every request: it holds the series' name too."""
        return RunFolder(self.path / f"{self.path.name}-{Shape.of(plan)}")

    def conclude(self, results: Sequence[Result]) -> Contrast:
        contrast = contrast_shapes(results)
        folders = {Shape.of(plan): self.folder(plan).run for plan in self.plans}
        (self.path / "shapes.md").write_text(render_shapes_markdown(self.path.name, contrast, folders))
        (self.path / PAGE).write_text(render_shapes_html(self.path.name, contrast, folders))
        return contrast
