"""`python -m deploy.lab.live PAIR`: a pair of embedded engines under traces, either alone and routed, live.

In: a pair. Out: a table beside the simulation's figures, and exit code 1 where routing costs too much. Knows the load
tester and the simulation by their command lines.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from deploy import demo_output
from deploy.embedded import Pace, embedded
from deploy.lab.live.report import HEADINGS, Json, find_doubts, judge, make_rows
from deploy.lab.live.scenario import ANSWER_TOKENS, BURSTS, PAIRS, PROMPT_TOKENS, RECORDED, list_options, name_traces
from deploy.launch import launched
from deploy.processes import Process, describe_status
from deploy.stacks import crossover_script
from deploy.supervisor import LaunchError

REHEARSED = (0, 1)  # of `crossover rehearse` that has served everything
NOT_SERVED = ("plan.json", "rehearsal.json")  # of a rehearsal's folder
SLOW_MOTION = Path(__file__).with_name("slow_motion").resolve()  # for PYTHONPATH
TABLE_WIDTH = 150
TRACES = (*RECORDED[PAIRS[0]], BURSTS)


@click.command(context_settings={"show_default": True})
@click.argument("pair", type=click.Choice(PAIRS))
@click.option("--time-scale", type=click.FloatRange(1), default=4.0, help="How slow the engines' motion is.")
@click.option("--seconds", type=click.FloatRange(1), default=40.0, help="Of each trace, in slow motion.")
@click.option("--rounds", type=click.IntRange(1), default=2, help="How often each trace is served in each way.")
@click.option("--trace", "traces", type=click.Choice(TRACES), multiple=True, default=TRACES)
@click.option("--port", type=click.IntRange(1, 65535), default=8080, help="The gateway's.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder.  [default: runs/live-PAIR-SCALE]"
)
def live(pair: str, traces: Sequence[str], out: Path | None, **options: Any) -> None:  # Any: click's
    """Serve traces on a pair of embedded engines that share GPUs: by either alone, and routed by `curve`.

    All live in the same slow motion, gateway and client too, so that figures are the measured pair's. The folder holds
    what was served: called again, the command serves the rest, and prints the table.

    \b
    Examples:
      python -m deploy.lab.live tp-dp
      python -m deploy.lab.live spec-plain --trace chat --seconds 10 --rounds 1 --out runs/short

    Exit codes: 0 routing costs at most 2 % in the mean and 5 % on any trace; 1 it costs more; 2 bad arguments; 3
    something did not start or was not served; 130 interrupted, to be continued.
    """
    pace, known = Pace(options["time_scale"], ANSWER_TOKENS, pair), name_traces(pair, options["seconds"])
    names, folder = {known[name]: name for name in traces}, out or Path("runs") / f"live-{pair}-{pace.time_scale:g}"
    try:
        _serve(pace, folder, options["port"], list_options(tuple(names), options["rounds"]))
    except LaunchError as exc:
        click.echo(f"live: {exc}", err=True)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(_report(names, folder))


def _serve(pace: Pace, folder: Path, port: int, options: Sequence[str]) -> None:
    slow = {"PYTHONPATH": str(SLOW_MOTION), "SLOW_MOTION": str(pace.time_scale)}
    with launched(embedded(pace, folder / "gpus"), port, folder, demo_output.print_ready, slow) as running:
        node = replace(pace, time_scale=1.0).describe_node(PROMPT_TOKENS, is_shared=True)
        (folder / "node.json").write_text(json.dumps(node))
        files = ("--node", str(folder / "node.json"), "--out", str(_find_served(folder)))
        command = (crossover_script(), "rehearse", "--url", running.url, *files, *options)
        status = running.supervisor.run(Process("rehearse", command, bool, slow))
    if status not in REHEARSED:
        raise LaunchError(f"the rehearsal failed ({describe_status(status)})")


def _report(names: Mapping[str, str], folder: Path) -> bool:
    served = _find_served(folder)
    outcomes = json.loads((served / "rehearsal.json").read_text())
    servings = [json.loads(file.read_text()) for file in served.glob("*.json") if file.name not in NOT_SERVED]
    simulated = {trace: _simulate(folder, trace) for trace in names}
    rows = list(make_rows(names, outcomes, servings, simulated))
    table = Table(*HEADINGS, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row.show())
    Console(width=max(Console().width, TABLE_WIDTH)).print(table)
    found, is_worse = judge(rows)
    for line in (*find_doubts(rows), found):
        click.echo(line)
    return is_worse


def _simulate(folder: Path, trace: str) -> Sequence[Json]:
    """Simulates what was served of a trace, in each way."""
    files = (_find_served(folder) / "traces").iterdir()
    file = next(file for file in files if json.loads(file.read_text().partition("\n")[0])["trace"] == trace)
    command = (crossover_script(), "policy", "simulate", "--node", str(folder / "node.json"), "--trace", str(file))
    output = subprocess.run((*command, "--prefix-cache", "--json"), check=True, capture_output=True).stdout
    outcomes: Sequence[Json] = json.loads(output)
    return outcomes


def _find_served(folder: Path) -> Path:
    return folder / "rehearsal"


if __name__ == "__main__":
    live()
