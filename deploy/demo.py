"""`crossover demo`: two engines behind one gateway, their crossing measured, the threshold set; then it serves.

In: options. Out: a running endpoint, how to use it, and no process afterwards. Knows the calibration only by its
command line and its result.json.
"""

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from deploy import demo_output
from deploy.cpu import StackMissing, cpu
from deploy.embedded import DEMO, PAIRS, Pace, embedded
from deploy.launch import LOGS, Launched, launched
from deploy.processes import Process, describe_status
from deploy.stacks import crossover_script
from deploy.supervisor import LaunchError

TIME_SCALE = 16.0  # two cores hold it, also when they are not alone
ANSWER_TOKENS = 32  # of each answer in the calibration; the paced engines' time to first token goes by it
STACKS = ("embedded", "cpu")
NODE = "node.json"  # in the run's folder: what the embedded engines are paced by, for `crossover rehearse --node`
LAYOUTS = ("shared", "partitioned")  # of the engines on the node's GPUs
# Of `crossover calibrate` when it has measured: a threshold or none needed, or that no single one is right.
CALIBRATED = (0, 4)


@click.command()
@click.option(
    "--stack", "stack_name", type=click.Choice(STACKS), default="embedded", show_default=True, help="Engines."
)
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="The gateway's port.")
@click.option("--calibrate/--no-calibrate", default=True, help="Measure the crossing first, or serve at once.")
@click.option(
    "--time-scale",
    type=click.FloatRange(1.0, 1000.0),
    default=TIME_SCALE,
    show_default=True,
    help="How many times slower than the measured pair the embedded engines are.",
)
@click.option(
    "--pair",
    type=click.Choice(PAIRS),
    default=DEMO,
    show_default=True,
    help="Which measured pair the embedded engines are as fast as. All but the demo's answer words without a meaning.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="shared",
    show_default=True,
    help="Whether the embedded engines work on the same GPUs, where each slows the other down, or each on its own.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Logs, crossover.yaml and the calibration go here; by default runs/demo-TIME.",
)
def demo(stack_name: str, port: int, calibrate: bool, run_dir: Path | None, **embedding: Any) -> None:  # Any: click's
    """Start two engines and a gateway, measure where they cross, serve until Ctrl-C.

    The embedded stack is a small model of this repository behind both wires, paced by measured latencies in slow
    motion, so that the crossing is a real pair's. With --pair tp-dp or spec-plain they are as fast as other measured
    engines, and recite words in place of a model's answers. The cpu stack is a real Triton and a real vLLM (`make
    stacks`), as fast as they are here.

    \b
    Examples:
      crossover demo
      crossover demo --stack cpu --port 9000
      crossover demo --no-calibrate
      crossover demo --layout partitioned
      crossover demo --pair tp-dp --time-scale 4 --no-calibrate

    Exit codes: 0 ended by Ctrl-C while serving; 1 something did not start, died or could not be measured; 2 bad
    arguments, or the stack is not installed; 130 ended by Ctrl-C before that.
    """
    interrupt_on_signals()
    pace = Pace(embedding["time_scale"], ANSWER_TOKENS, embedding["pair"]) if stack_name == "embedded" else None
    run_dir = run_dir or _default_run_dir()
    try:
        gpus = run_dir / "gpus" if embedding["layout"] == "shared" else None
        stack = embedded(pace, gpus) if pace else cpu(run_dir / LOGS)
        click.echo(f"starting {', '.join(stack.process_names)}")
        with launched(stack, port, run_dir, demo_output.print_ready) as running:
            if pace:
                (run_dir / NODE).write_text(json.dumps(pace.describe_node(is_shared=gpus is not None)))
            if calibrate:
                _calibrate(running, pace)
            demo_output.print_usage(running.url)
            _serve(running)
    except LaunchError as exc:
        click.echo(f"crossover demo: {exc}", err=True)
        sys.exit(2 if isinstance(exc, StackMissing) else 1)
    except KeyboardInterrupt:
        sys.exit(130)


def _calibrate(running: Launched, pace: Pace | None) -> None:
    out = running.run_dir / "calibration"
    # In slow motion an answer takes longer than in what a quick run is for: it gets more time, and is not rehearsed.
    slow = ("--budget", "160", "--rehearsals", "0") if pace else ()
    options = ("--quick", "--apply", "--tokens", str(ANSWER_TOKENS), "--url", running.url, "--out", str(out), *slow)
    click.echo()
    status = running.supervisor.run(Process("calibrate", (crossover_script(), "calibrate", *options), is_ready=bool))
    if status not in CALIBRATED:
        raise LaunchError(f"the calibration failed ({describe_status(status)})")
    if pace:
        newest = max(out.glob("*/result.json"))  # a run's name begins with its time; the folder may hold earlier ones
        demo_output.print_crossing(json.loads(newest.read_text()), pace)


def _serve(running: Launched) -> None:
    click.echo(f"ready {running.url}/v1")
    try:
        running.supervisor.watch()
    except KeyboardInterrupt:
        click.echo("\nending every process")


def interrupt_on_signals() -> None:
    """Makes SIGTERM and a closed terminal end the demo as Ctrl-C does: by an exception that unwinds every block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _default_run_dir() -> Path:
    return Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
