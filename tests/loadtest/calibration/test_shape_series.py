from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.calibration.shape_series import ShapeSeries
from loadtest.client.errors import Unreachable
from loadtest.results.plan import QUICK


def test_plans_are_read_back_from_the_folder(tmp_path: Path) -> None:
    plans = [replace(QUICK, prompt_words=words, tokens=tokens) for words, tokens in ((12, 32), (500, 16))]
    series = ShapeSeries.create(tmp_path, plans)
    assert ShapeSeries.read(series.path) == series
    assert [series.folder(plan).run for plan in plans] == [f"{series.path.name}-12x32", f"{series.path.name}-500x16"]
    assert ShapeSeries.read(tmp_path) is None
    (series.path / "shapes.json").write_text("[]x")
    with pytest.raises(Unreachable, match="not the folder of a run that can be resumed"):
        ShapeSeries.read(series.path)
