"""`python -m loadtest.lab.bench`: options in, a run folder with results and a table out."""

import fcntl
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import yaml

from loadtest.lab.bench.folder import BenchFolder
from loadtest.lab.bench.session import ROOT, Options, Session, finish
from loadtest.lab.bench.systems import SYSTEMS
from loadtest.lab.figures.scenarios import GROUPS, SCENARIOS, TRITON
from loadtest.mock_engine.process import CannotMeasure

CHOICES = (*SCENARIOS, TRITON.name)


def _names(known: Collection[str], groups: Mapping[str, Sequence[str]]) -> Any:  # Any: a click callback
    def parse(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[str, ...]:
        if not text:
            return tuple(known)
        asked = [name for part in text.split(",") for name in groups.get(part, (part,))]
        if unknown := [name for name in asked if name not in known]:
            raise click.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(sorted({*known, *groups}))}")
        return tuple(dict.fromkeys(asked))

    return parse


def _peers(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Mapping[str, Path]:
    """Reads commands by name from a YAML file."""
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_bytes())
        return {str(name): Path(str(command)).expanduser() for name, command in content.items()}
    except (yaml.YAMLError, AttributeError) as exc:
        raise click.BadParameter(f"{path}: expected lines like `smg: /opt/smg/bin/smg`") from exc


@click.command()
@click.option(
    "--scenarios",
    callback=_names(CHOICES, GROUPS),
    help=f"Of {', '.join(sorted({*CHOICES, *GROUPS}))}.  [default: all]",
)
@click.option("--systems", callback=_names(SYSTEMS, {}), help=f"Of {', '.join(SYSTEMS)}.  [default: all installed]")
@click.option("--repeats", type=click.IntRange(1), help="Measurements of each; medians count.  [default: 3, quick 1]")
@click.option("--quick", "is_quick", is_flag=True, help="Short windows and one repeat: a look, not a result.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="CROSSOVER_BENCH_PEERS",
    show_envvar=True,
    callback=_peers,
    help="YAML file with the paths of commands (`smg: /opt/smg/bin/smg`) that are not on the PATH.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / ".bench",
    show_default=".bench",
    help="Folder of programs built here, and under peers/<name>/ of environments of other gateways.",
)
@click.option("--out", type=click.Path(path_type=Path, resolve_path=True), default=ROOT / "runs", show_default="runs")
@click.option(
    "--render",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Measure nothing; report on this run again, also on one that was interrupted.",
)
def main(**values: Any) -> None:  # Any: click's; Options has the types
    """Measure what gateways cost: CPU per request and per streamed token, delay per token, side by side in one run.

    A mock engine and a load client in C share one CPU (two where there are four), each gateway has another. Every token
    carries the time at which it was sent and its place. So delays are those of tokens, and a token that is lost or out
    of order voids its measurement.

    \b
    Examples:
      make bench ARGS="--quick"
      make bench ARGS="--scenarios pace256,ns16 --systems nginx,crossover-relay --repeats 5"
      make bench ARGS="--render runs/bench-20260101T120000Z"

    Exit codes: 0 measured; 1 some measurement does not count; 2 it could not be tried.
    """
    repeats, render = values.pop("repeats"), values.pop("render")
    options = Options(repeats=repeats or (1 if values["is_quick"] else 3), **values)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are ended
    try:
        with alone(options.cache):
            if render:
                finish(BenchFolder(render))
            is_good = bool(render) or Session(options).run()
    except (CannotMeasure, OSError) as exc:
        click.echo(f"Error: {exc}", err=True)
        sys.exit(2)
    sys.exit(0 if is_good else 1)


@contextmanager
def alone(cache: Path) -> Iterator[None]:
    """Waits until no other run is going on: two at once would disturb each other."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            click.echo("another run is going on; waiting for its end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(prog_name="make bench")
