"""`crossover rehearse`: traces of changing load on either engine alone and routed, with a table and pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.admin import find_system
from loadtest.cli_options import parse_target, read_node
from loadtest.client.errors import MeasurementError
from loadtest.client.sender import Sender
from loadtest.client.target import Target
from loadtest.decide.regret import Rule
from loadtest.rehearsal.find_trace import TRACE_HELP, find_trace
from loadtest.rehearsal.outcome import (
    HEADINGS,
    OBJECTIVES,
    PAGE,
    Outcome,
    find_outcomes,
    is_decided,
    list_rows,
    read_objective,
    render_page,
)
from loadtest.rehearsal.rehearse import Rehearsal, Serving, make_arms, name_alone, slug, warm_up
from loadtest.rehearsal.trace_file import HEADER, write_trace
from loadtest.rehearsal.traces import TRACES, Pair, TraceRequest
from loadtest.results.folder import name_run
from loadtest.results.plan import FULL
from loadtest.results.system import Json, SystemUnderTest

PLAN, RESULT, SERVED = "plan.json", "rehearsal.json", "traces"
TABLE_WIDTH = 150  # where nothing shows how wide the reader's window is


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What the command did: on which backends, and what came of it."""

    folder: Path
    system: SystemUnderTest
    servings: Sequence[Serving]
    objective: str
    outcomes: Sequence[Outcome]


@click.command(context_settings={"show_default": True})
@click.option(
    "--url",
    "target",
    default="http://127.0.0.1:8080",
    envvar="CROSSOVER_URL",
    callback=parse_target,
    help="The gateway.",
)
@click.option("--key", envvar="CROSSOVER_OPERATOR_KEY", show_envvar=True, help="Its operator key, if it has one.")
@click.option("--model", help="Which model; needed when the gateway serves several.")
@click.option("--trace", "traces", multiple=True, help=TRACE_HELP)
@click.option("--policy", "policies", multiple=True, help="A kind and its keys.  [default: the policy in force]")
@click.option(
    "--node", "node_file", type=click.Path(path_type=Path), help="The node model's JSON.  [default: the policy's own]"
)
@click.option("--tokens", type=click.IntRange(2), help="Length of every answer.  [default: the node model's]")
@click.option("--prompt-words", type=click.IntRange(1), default=FULL.prompt_words, help="Length of every prompt.")
@click.option(
    "--objective",
    type=click.Choice(tuple(OBJECTIVES)),
    help="Which times are compared: of whole answers or to first tokens.  [default: the policy's, else answer]",
)
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=5, help="The most times that each way serves each trace."
)
@click.option("--budget", type=float, default=math.inf, help="Begin no further repeat after this many seconds.")
@click.option(
    "--max-loss",
    type=click.FloatRange(min=0),
    default=0.0,
    help="A policy is worse if its mean answer takes over this share longer than with the better engine alone.",
)
@click.option("--seed", type=int, default=1, help="Of the traces' arrivals.")
@click.option("--out", type=click.Path(path_type=Path), help="A folder; what is in it is not repeated.  [default: new]")
@click.option("--json", "as_json", is_flag=True, help="Every outcome as JSON on stdout.")
def rehearse(**options: Any) -> None:  # Any: click's
    """Serve traces of changing load on either engine alone and routed, and compare the times of answers.

    Rates and lengths of the traces follow from the node model: that of the policy in force, or of --node. The policy
    before is back at the end.

    \b
    Examples:
      crossover rehearse
      crossover rehearse --trace ramp --trace step --policy curve --policy "threshold up=70 down=52" --node node.json
      crossover rehearse --trace "step only_high=0.2" --trace "step long=0.05 long_tokens=8000 length=60"
      crossover rehearse --trace "azure-chat peak=36 seconds=50" --trace monday.jsonl
      crossover rehearse --out runs/tuesday --repeats 10 --max-loss 0.05

    A trace is served twice in each way, and then again until it is known of every policy whether it serves worse.

    Exit codes: 0 no policy serves worse than the better engine alone, as far as is known; 1 one does, by more than its
    interval; 2 bad arguments or no gateway; 3 an answer was not the work asked for.
    """
    try:
        rehearsed = uvloop.run(_rehearse(options))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (MeasurementError, ValueError) as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(getattr(exc, "exit_code", 2)) from None
    _write(rehearsed)
    if options["as_json"]:
        click.echo(orjson.dumps([asdict(outcome) for outcome in rehearsed.outcomes], option=orjson.OPT_INDENT_2))
    else:
        _print(rehearsed)
    raise SystemExit(any(outcome.verdict == "worse" for outcome in rehearsed.outcomes))


async def _rehearse(options: Mapping[str, Any]) -> Rehearsed:  # Any: click's
    target: Target = replace(options["target"], key=options["key"])
    system = await find_system(target, options["model"])
    node = _find_node(options["node_file"], system)
    tokens = options["tokens"] or int(str(node.get("answer_tokens", FULL.tokens)))
    sender = Sender(target, system.model, "", options["seed"], options["prompt_words"], wants_counts=True)
    sender, prompts = await warm_up(sender, system, tokens)
    traces = {
        text: find_trace(text, Pair.of(node, prompts.tokens, tokens), options["seed"])
        for text in options["traces"] or TRACES
    }
    arms = make_arms(system, options["policies"], node)
    folder = options["out"] or Path("runs") / name_run()
    _keep_plan(folder, {"arms": arms, "tokens": tokens, "traces": {name: len(trace) for name, trace in traces.items()}})
    _keep_traces(folder, traces)
    objective, rule = (
        options["objective"] or read_objective(system.policy),
        Rule(options["max_loss"], options["repeats"]),
    )
    singles, budget_s = list(map(name_alone, system.backends)), options["budget"]
    rehearsal = Rehearsal(
        target,
        system,
        sender,
        traces,
        arms,
        rule.most,
        folder,
        prompts,
        lambda servings: is_decided(servings, singles, objective, rule),
        budget_s,
    )
    servings = await rehearsal.run()
    outcomes = find_outcomes(servings, singles, objective, rule)
    return Rehearsed(folder, system, servings, objective, outcomes)


def _find_node(file: Path | None, system: SystemUnderTest) -> Json:
    """Finds the node model in a file, or in the policy in force. Raises ValueError if there is none."""
    if file is not None:
        return read_node(file)
    node = system.policy.get("node")
    if isinstance(node, dict):
        return node
    raise ValueError("the policy in force has no node model, which says how fast both engines are: give --node FILE")


def _keep_plan(folder: Path, plan: Mapping[str, object]) -> None:
    """Writes the plan, or compares it with that of the folder. Raises ValueError if it is another, or not writable."""
    text = orjson.dumps(plan, option=orjson.OPT_INDENT_2) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / PLAN).exists():
            if (folder / PLAN).read_bytes() != text:
                raise ValueError(f"--out: {folder} holds a rehearsal by another plan")
            return
        (folder / PLAN).write_bytes(text)
    except OSError as exc:
        raise ValueError(f"--out: cannot write to {folder}: {exc.strerror}") from exc


def _keep_traces(folder: Path, traces: Mapping[str, Sequence[TraceRequest]]) -> None:
    """Writes what is served, as files that `policy simulate` takes."""
    (folder / SERVED).mkdir(exist_ok=True)
    for name, trace in traces.items():
        write_trace(folder / SERVED / f"{slug(name)}.jsonl", trace, {HEADER: name})


def _write(rehearsed: Rehearsed) -> None:
    folder, outcomes = rehearsed.folder, rehearsed.outcomes
    (folder / RESULT).write_bytes(orjson.dumps(outcomes, option=orjson.OPT_INDENT_2) + b"\n")
    page = render_page(folder.name, rehearsed.system.backends, outcomes, rehearsed.servings, rehearsed.objective)
    (folder / PAGE).write_text(page)


def _print(rehearsed: Rehearsed) -> None:
    console = Console()
    table = Table(*HEADINGS, box=box.SIMPLE_HEAD)
    for row in list_rows(rehearsed.outcomes):
        table.add_row(*row)
    Console(width=max(console.width, TABLE_WIDTH)).print(table)
    console.print(f"report     {rehearsed.folder / PAGE}", markup=False, highlight=False, soft_wrap=True)
