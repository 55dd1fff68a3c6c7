"""`crossover calibrate`: options in, a run folder, a table and an exit code out."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import click
import orjson
from rich.console import Console

from loadtest.calibration import command
from loadtest.calibration.options import make_plans
from loadtest.calibration.progress_json import JsonProgress
from loadtest.calibration.run import PolicyKind
from loadtest.cli_options import gpu_count, gpu_price, parse_target, parsed_by
from loadtest.client.errors import MeasurementError
from loadtest.client.target import Target
from loadtest.decide.slo import Slo
from loadtest.rehearsal.find_trace import find_trace
from loadtest.rehearsal.traces import Variant
from loadtest.results.hardware import read_hardware
from loadtest.results.shapes import Shape

INTERRUPTED = 130


def _parse_levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(level) for level in text.split(","))
    except ValueError as exc:
        raise ValueError("whole numbers with commas between them, like 1,2,4,8") from exc


def _check_trace(text: str) -> str:
    """Reads recorded traffic once before anything is measured, and returns the text. Raises ValueError."""
    if Variant.parse(text) is None:
        find_trace(text, None, 0)
    return text


def _parse_shapes(texts: Sequence[str]) -> tuple[Shape, ...]:
    shapes = tuple(map(Shape.parse, texts))
    if len(set(shapes)) < len(shapes):
        raise ValueError("every shape once")
    return shapes


@click.command(context_settings={"show_default": True})
@click.option(
    "--url",
    "target",
    default="http://127.0.0.1:8080",
    envvar="CROSSOVER_URL",
    show_envvar=True,
    callback=parse_target,
    help="The gateway.",
)
@click.option("--key", envvar="CROSSOVER_OPERATOR_KEY", show_envvar=True, help="Its operator key, if it has one.")
@click.option("--model", help="Which model; needed when the gateway serves several.")
@click.option("--quick", "is_quick", is_flag=True, help="Answers of 128 tokens, short windows: under three minutes.")
@click.option("--apply", "should_apply", is_flag=True, help="Set the live policy by what was found.")
@click.option(
    "--policy",
    "kind",
    type=click.Choice(get_args(PolicyKind)),
    default=get_args(PolicyKind)[0],
    help="The kind that --apply sets: curve predicts from the node model, threshold changes sides where both cross.",
)
@click.option("--out", type=click.Path(path_type=Path), default="runs", help="Where the run's folder is created.")
@click.option(
    "--levels", callback=parsed_by(_parse_levels), help="Requests in flight to measure at.  [default: 1,2,4,...,128]"
)
@click.option("--tokens", type=int, help="Exact length of every answer.  [default: 256, quick 128]")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=parsed_by(_parse_shapes),
    metavar="WORDSxTOKENS",
    help="Words of each prompt and exact length of each answer, like 512x64; several are calibrated in turn, and the "
    "threshold is that of the first.  [default: 48x256, quick 48x128]",
)
@click.option("--window", "window_s", type=float, help="Least seconds of each measurement.  [default: 3, quick 2.5]")
@click.option(
    "--budget",
    "budget_s",
    type=float,
    help="Refine for at most this many seconds from the start.  [default: 400, quick 80]",
)
@click.option("--repeats", type=int, help="Pairs at every level before refinement, at least 2.  [default: 3, quick 2]")
@click.option("--slo", callback=parsed_by(Slo.parse), help="Limits of goodput in seconds, like ttft=0.5,tpot=0.03.")
@click.option("--accept-wide", is_flag=True, help="Accept a threshold whose crossing is known only vaguely.")
@click.option(
    "--rehearsals",
    type=click.IntRange(0),
    help="After --apply, serve a changing load with routing live and on either engine alone until it is known whether "
    "routing serves worse, at most this many times.  [default: 5]",
)
@click.option(
    "--trace",
    callback=parsed_by(_check_trace),
    help="The load of those rehearsals: a file, or a trace by name as in `crossover rehearse`.  [default: a step]",
)
@click.option(
    "--turns",
    type=click.IntRange(0),
    help="How often both engines are measured alone and together; 0: no node model.  [default: 3, quick 2]",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="How sound the measurement has to be, like client_cpu=0.9; docs/calibration.md lists all limits.",
)
@click.option(
    "--hardware",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=parsed_by(read_hardware),
    help="What the backends run on, and what their engines do not report (YAML: docs/calibration.md).",
)
@gpu_price
@gpu_count
@click.option(
    "--resume",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Continue the run in this folder, by its own plan: nothing is measured twice.",
)
@click.option("--max-in-flight", type=click.IntRange(min=1), help="Leave out levels above this.")
@click.option(
    "--max-foreign", type=click.IntRange(min=0), help="Wait while more requests of others than this are in flight."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    help="Divide the streams among this many processes, where one core cannot read as fast as a backend sends.",
)
@click.option(
    "--gpus",
    metavar="URL",
    callback=parsed_by(Target.parse),
    help="Page of the node's DCGM exporter, like http://node:9400/metrics: power, clocks and memory go into the cells.",
)
@click.option(
    "--progress", type=click.Choice(("text", "json")), default="text", help="json: one JSON object a line on stderr."
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout; progress goes to stderr.")
def calibrate(**options: Any) -> None:  # Any: click's
    """Measure both engines through the gateway, find the load at which they cross, set the policy.

    Every request decodes exactly the same number of tokens on either engine, or the run is refused. The threshold
    holds for that length of answer.

    \b
    Examples:
      crossover calibrate --quick --apply
      crossover calibrate --url http://gpu-node:8080 --tokens 512 --out /var/lib/crossover/runs
      crossover calibrate --shape 200x250 --shape 2000x50 --shape 50x1000
      crossover calibrate --apply --trace monday.jsonl
      crossover calibrate --resume runs/20260101T000000Z-1a2b

    Exit codes: 0 measured (also when one engine always wins); 2 bad arguments or no gateway; 3 the measurement cannot
    be trusted; 4 no single threshold is right or known, and no policy was set that needs none; 5 routing served a
    changing load worse than the better engine alone does, and the policy before is back; 130 interrupted: --resume
    continues.
    """
    try:
        plans = make_plans(options)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script's shell starts what ends in & so (POSIX, 2.11)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    lines = JsonProgress(sys.stderr) if options["progress"] == "json" else None
    console = Console(stderr=options["as_json"], quiet=options["as_json"] and lines is not None)
    try:
        results = command.calibrate(options, plans, console, lines)
    except KeyboardInterrupt:
        if lines:
            lines.end("interrupted", INTERRUPTED)
        command.print_lines(console, "interrupted; the cells measured so far are kept: --resume continues from them")
        raise SystemExit(INTERRUPTED) from None
    except MeasurementError as exc:
        if lines:
            lines.end("failed", exc.exit_code, str(exc))
        else:
            click.echo(f"Error: {exc}", err=True)
        raise SystemExit(exc.exit_code) from None
    if options["as_json"]:
        documents = [result.to_json() for result in results]
        click.echo(orjson.dumps(documents[0] if len(documents) == 1 else documents, option=orjson.OPT_INDENT_2))
    raise SystemExit(command.find_exit_code(results))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Ends a run on SIGTERM as Ctrl-C does, by whatever handles Ctrl-C at that moment."""
    signal.raise_signal(signal.SIGINT)
