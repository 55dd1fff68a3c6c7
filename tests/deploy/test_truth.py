"""Pairs whose crossing is known: that it is where they say, and that the command measures it there."""

import json
import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.truth import Found, KnownPair
from engines.reference.curve import read_curve, true_crossing

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("crossing", [2, 12, 45, 90, 128])
@pytest.mark.parametrize("octave", [0.15, 0.3])
def test_a_pair_crosses_where_it_says_and_changes_by_its_share_per_octave(
    crossing: int, octave: float, tmp_path: Path
) -> None:
    pair = KnownPair(crossing, octave, tmp_path)
    low, high = (read_curve(Path(pair.options(name)[1])) for name in ("triton", "vllm"))
    assert true_crossing(low, high, 16) == pytest.approx(crossing, rel=1e-6)
    for one, other in pairwise(2**k for k in range(8)):
        ratios = [low.throughput(load, 16) / high.throughput(load, 16) for load in (one, other)]
        # Between two of a curve's loads it is a straight line.
        assert ratios[0] / ratios[1] == pytest.approx(1 + octave, rel=0.01)


@pytest.mark.parametrize(
    ("parts", "is_true", "is_narrow", "says"),
    [
        (((40.0, 50.0),), True, True, "40 to 50: holds the truth, hi/lo 1.25"),
        (((46.0, 50.0),), False, True, "46 to 50: MISSES THE TRUTH, hi/lo 1.09"),
        (((30.0, 50.0),), True, False, "30 to 50: holds the truth, hi/lo 1.67 OVER 1.5"),
        (((38.0, 40.0), (44.0, 46.0)), True, True, "38 to 40 and 44 to 46: holds the truth, hi/lo 1.21"),
        ((), False, False, "no set: MISSES THE TRUTH, hi/lo inf OVER 1.5"),
    ],
)
def test_a_finding_is_held_against_the_truth(
    parts: tuple[tuple[float, float], ...], is_true: bool, is_narrow: bool, says: str
) -> None:
    found = Found(45.0, "crossing", parts, Path("runs/x"))
    assert (found.is_true, found.is_narrow) == (is_true, is_narrow)
    assert str(found) == f"truth 45.0: crossing, {says}  runs/x"
    assert math.isinf(found.spread) == (not parts)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_command_measures_a_pair_near_its_truth(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "deploy.truth", "--crossing", "6", "--octave", "0.5", "--run-dir", str(tmp_path))
    options = ("--", "--quick", "--tokens", "8", "--levels", "2,4,8,16", "--budget", "30")
    done = subprocess.run((*command, *options), cwd=ROOT, capture_output=True, text=True, timeout=220, check=False)
    told = re.search(r"^truth 6\.0: crossing, .* (holds|MISSES) .*$", done.stdout, re.MULTILINE)
    assert told, done.stdout + done.stderr
    [result] = tmp_path.glob("truth-6-*/*/result.json")
    # Its 95 % set may miss; its best guess stays close.
    assert json.loads(result.read_text())["crossover"]["throughput"]["point"] == pytest.approx(6.0, rel=0.2)
    assert done.returncode == (0 if told[1] == "holds" and "OVER" not in told[0] else 1)


def test_a_calibration_that_cannot_begin_is_told(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "deploy.truth", "--crossing", "6", "--run-dir", str(tmp_path))
    done = subprocess.run(
        (*command, "--", "--tokens", "x"), cwd=ROOT, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 1
    assert "the calibration failed" in done.stderr
