"""`python -m deploy.truth`: calibrations of engines whose crossing is known, for whoever doubts the instrument.

In: crossings. Out: for each, the confidence set that `crossover calibrate` found, and whether it holds the truth. The
engines recite at a pace and compute nothing, so the truth is that of the machine too.
"""

import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from deploy import guide
from deploy.demo import interrupt_on_signals
from deploy.embedded import embedded
from deploy.launch import launched
from deploy.ports import find_free
from deploy.processes import Process, describe_status
from deploy.stacks import crossover_script
from deploy.supervisor import LaunchError
from engines.reference.curve import MEASURED_TOKENS, Curve, Level, encode, true_crossing

STEP_S = 0.04  # from token to token at one request in flight: slow enough for two cores at 128
MOST = 256  # requests in flight that the curves know
WIDEST = 1.5  # times from a set's lower end to its upper one


@dataclass(frozen=True, slots=True)
class KnownPair:
    """`low` is ahead below `crossing`, `high` above; their ratio changes by the share `octave` per doubling of load."""

    crossing: int
    octave: float
    folder: Path

    def curves(self) -> Mapping[str, Curve]:
        slope = math.log2(1 + self.octave)
        loads = sorted({self.crossing, *(2**k for k in range(int(math.log2(MOST)) + 1))})
        high = {load: STEP_S * (1 + load / 64) for load in loads}
        low = {load: high[load] * (load / self.crossing) ** slope for load in loads}
        return {"triton": _join("low", low), "vllm": _join("high", high)}

    def options(self, backend: str) -> tuple[str, ...]:
        path = self.folder / f"{backend}.json"
        path.write_text(encode(self.curves()[backend]))
        # The first token as fast as written, whatever the answers' length.
        pace = ("--curve", str(path), "--time-scale", "1", "--answer-tokens", str(MEASURED_TOKENS))
        return (*pace, "--no-model", "--max-batch", str(MOST))


@dataclass(frozen=True, slots=True)
class Found:
    """What a calibration said of a pair; `parts`: of its confidence set."""

    truth: float
    verdict: str
    parts: tuple[tuple[float, float], ...]
    run: Path

    @classmethod
    def of(cls, pair: KnownPair, tokens: int, run: Path) -> "Found":
        result: Mapping[str, Any] = json.loads((run / "result.json").read_text())  # Any: JSON
        finding = result["crossover"]["throughput"]
        parts = tuple((low, high) for low, high in finding["set"])
        curves = pair.curves()
        return cls(true_crossing(curves["triton"], curves["vllm"], tokens), finding["verdict"], parts, run)

    @property
    def spread(self) -> float:
        return self.parts[-1][1] / self.parts[0][0] if self.parts else math.inf

    @property
    def is_true(self) -> bool:
        return any(low <= self.truth <= high for low, high in self.parts)

    @property
    def is_narrow(self) -> bool:
        return self.spread <= WIDEST

    def __str__(self) -> str:
        parts = " and ".join(f"{low:g} to {high:g}" for low, high in self.parts) or "no set"
        holds = "holds the truth" if self.is_true else "MISSES THE TRUTH"
        width = f"hi/lo {self.spread:.2f}" + ("" if self.is_narrow else f" OVER {WIDEST:g}")
        return f"truth {self.truth:.1f}: {self.verdict}, {parts}: {holds}, {width}  {self.run}"


@click.command()
@click.option("--crossing", "crossings", type=click.IntRange(2, 128), multiple=True, default=(12, 45, 90))
@click.option(
    "--octave", type=click.FloatRange(0.01, 4.0), default=0.2, show_default=True, help="Change of the ratio per octave."
)
@click.option("--run-dir", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def truth(crossings: tuple[int, ...], octave: float, run_dir: Path, options: tuple[str, ...]) -> None:
    """Calibrate pairs of embedded engines whose crossings are known, one after another.

    OPTIONS go to `crossover calibrate`, by default --tokens 16 --window 8.

    \b
    Examples:
      python -m deploy.truth
      python -m deploy.truth --crossing 45 --octave 0.15 -- --tokens 32 --repeats 4

    Exit codes: 0 every set holds the truth and is narrow; 1 one does not, or could not be had.
    """
    interrupt_on_signals()
    try:
        found = [
            _calibrate(crossing, octave, run_dir, options or ("--tokens", "16", "--window", "8"))
            for crossing in crossings
        ]
    except LaunchError as exc:
        click.echo(f"truth: {exc}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    click.echo()
    for one in found:
        click.echo(one)
    sys.exit(not all(one.is_true and one.is_narrow for one in found))


def _calibrate(crossing: int, octave: float, run_dir: Path, options: tuple[str, ...]) -> Found:
    folder = run_dir / time.strftime(f"truth-{crossing}-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    pair = KnownPair(crossing, octave, folder)
    stack = embedded(pair)
    with (
        guide.StartScreen(stack.process_names) as screen,
        launched(stack, find_free(1)[0], folder, screen.report) as running,
    ):
        command = (crossover_script(), "calibrate", "--url", running.url, "--out", str(folder), *options)
        status = running.supervisor.run(Process("calibrate", command, is_ready=bool))
    results = list(folder.glob("*/result.json"))
    if not results:
        raise LaunchError(f"the calibration failed ({describe_status(status)})")
    return Found.of(pair, _tokens(results[0]), results[0].parent)


def _tokens(result: Path) -> int:
    return int(json.loads(result.read_text())["shape"]["completion_tokens"])


def _join(name: str, step_s: Mapping[int, float]) -> Curve:
    """Its first token takes as long as each of the others."""
    return Curve(name, tuple(Level(load, seconds, seconds) for load, seconds in step_s.items()))


if __name__ == "__main__":
    truth()
