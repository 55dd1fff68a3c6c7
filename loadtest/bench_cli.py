"""`crossover bench`: measures one workload against one endpoint, with figures on a terminal or as JSON."""

import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import orjson
import uvloop

from loadtest.cli_options import gpu_price, is_given, parse_target, parsed_by, read_node
from loadtest.client.arrivals import Kind
from loadtest.client.errors import MeasurementError
from loadtest.client.open_loop import Due
from loadtest.client.probe import PromptLengths
from loadtest.decide.cost import EVERY, Cost
from loadtest.decide.slo import Slo
from loadtest.rehearsal.find_trace import find_trace, list_due
from loadtest.rehearsal.traces import Pair
from loadtest.results.plan import FULL
from loadtest.workload.ceiling import STREAMS, WINDOW_S, measure_ceiling
from loadtest.workload.figures import add_cost
from loadtest.workload.measure import MakeTrace, Workload, measure
from loadtest.workload.tables import print_ceiling, print_figures

MIN_WINDOW_S = 1e-3
KINDS = get_args(Kind)
LOADS = ("concurrency", "rate", "trace")
NOT_OF_A_TRACE = ("last_rate", "kind", "window_s", "requests")
WITH_NULL = {"is_null", "concurrency", "window_s", "as_json"}
T = TypeVar("T")


@click.command(context_settings={"show_default": True})
@click.option("--url", "target", default="http://127.0.0.1:8080", callback=parse_target, help="The endpoint.")
@click.option("--key", envvar="OPENAI_API_KEY", show_envvar=True, help="Its API key, if it wants one.")
@click.option("--model", help="Which model; the first of /v1/models if not given.")
@click.option(
    "--pin", "backend", default="", show_default=False, help="The gateway's backend that serves all requests."
)
@click.option("--concurrency", type=click.IntRange(1), help="Closed loop: this many requests in flight all the time.")
@click.option("--rate", type=float, help="Open loop: requests per second, sent when due whatever becomes of others.")
@click.option("--ramp-to", "last_rate", type=float, help="The rate grows, or falls, to this one in a straight line.")
@click.option(
    "--trace",
    help="A file's requests, or a trace by name as in `crossover rehearse`; shapes of changing load need --node.",
)
@click.option("--node", type=click.Path(path_type=Path), help="A node model's JSON: how fast engines are.")
@click.option("--arrivals", "kind", type=click.Choice(KINDS), default=KINDS[0], help="How they are spread.")
@click.option("--tokens", type=click.IntRange(2), default=FULL.tokens, help="Length of every answer.")
@click.option("--prompt-words", type=click.IntRange(1), default=FULL.prompt_words, help="Length of every prompt.")
@click.option("--window", "window_s", type=float, default=20.0, help="Least seconds measured.")
@click.option(
    "--requests",
    type=click.IntRange(0),
    default=0,
    show_default=False,
    help="Closed loop: least requests measured, and no --window then.",
)
@click.option("--any-length", is_flag=True, help="Take answers that end early: for endpoints without ignore_eos.")
@click.option("--slo", callback=parsed_by(Slo.parse), help="Limits of goodput in seconds, like ttft=0.5,tpot=0.03.")
@gpu_price
@click.option("--gpu-count", type=click.IntRange(1), help="GPUs behind the endpoint: adds tokens per GPU-hour.")
@click.option("--seed", type=int, help="Of prompts and arrivals; a new one each time if not given.")
@click.option("--null", "is_null", is_flag=True, help="Measure this client: against a server here that does no work.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout.")
@click.pass_context
def bench(context: click.Context, /, **values: Any) -> None:  # Any: click's; Workload has the types
    """Load any OpenAI endpoint with one workload and measure how fast it is.

    Closed loop (--concurrency), open loop (--rate), or the requests of a trace (--trace). Without a closed loop
    latencies count from when a request was due, so that a server which falls behind shows it.

    \b
    Examples:
      crossover bench --url http://gpu-node:8080 --concurrency 64
      crossover bench --url http://gpu-node:8080 --concurrency 64 --requests 640
      crossover bench --url http://gpu-node:8000/v1 --rate 12 --tokens 128 --slo ttft=0.5,tpot=0.03
      crossover bench --url http://gpu-node:8080 --trace monday.jsonl
      crossover bench --url http://gpu-node:8080 --trace "step length=60" --node result.json
      crossover bench --null

    Exit codes: 0 measured; 2 bad arguments or no endpoint; 3 an answer was not the work asked for.
    """
    if values["is_null"]:
        _measure_this_client(context, values)
    else:
        _measure_endpoint(context, values)


def _measure_endpoint(context: click.Context, values: dict[str, Any]) -> None:  # Any: see bench
    seed = secrets.randbits(32) if values["seed"] is None else values["seed"]
    workload, cost = _make_workload(context, values, seed), _make_cost(values)
    figures = add_cost(_run(measure(workload, seed)), cost, workload.backend)
    if values["as_json"]:
        click.echo(orjson.dumps(asdict(figures), option=orjson.OPT_INDENT_2))
        return
    print_figures(figures, f"{workload.target}: {_describe(values)}", workload.slo, cost.price)


def _describe(values: dict[str, Any]) -> str:  # Any: see bench
    if values["trace"]:
        return str(values["trace"])
    if values["concurrency"]:
        return f"{values['concurrency']} in flight"
    return f"{values['rate']:g} requests/s, {values['kind']}"


def _make_workload(context: click.Context, values: dict[str, Any], seed: int) -> Workload:  # Any: see bench
    """Makes the workload. With --requests the window ends by requests, and by time only if --window was given too."""
    if sum(values[load] is not None for load in LOADS) != 1:
        raise click.UsageError("one of --concurrency, --rate and --trace says which load it is to be")
    if values["requests"] and values["rate"] is not None:
        raise click.UsageError("--requests: of a closed loop; in an open one --window and --rate say how many")
    workload = {each.name: values[each.name] for each in fields(Workload)}
    if values["trace"] is not None:
        workload["trace"] = _read_trace(context, values, seed)
    workload["target"] = replace(values["target"], key=values["key"])
    if values["requests"] and not is_given(context, "window_s"):
        workload["window_s"] = MIN_WINDOW_S
    return Workload(**workload)


def _read_trace(context: click.Context, values: dict[str, Any], seed: int) -> MakeTrace:  # Any: see bench
    """Returns what makes the trace's requests, once it is known how long prompts are.

    A file is read at once: the gateway may add our own requests to it.
    """
    if given := [name for name in NOT_OF_A_TRACE if is_given(context, name)]:
        options = {name: parameter.opts[0] for parameter in context.command.params if (name := parameter.name)}
        raise click.UsageError(f"{options[given[0]]}: a trace has arrivals of its own")
    text, tokens = values["trace"], values["tokens"]
    try:
        node = read_node(values["node"]) if values["node"] else None
        kept = [] if node else find_trace(text, None, seed)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc

    def make(prompts: PromptLengths) -> Sequence[Due]:
        trace = kept if node is None else find_trace(text, Pair.of(node, prompts.tokens, tokens), seed)
        if any(request.only for request in trace):
            raise ValueError(
                f"--trace {text}: names engines that alone can serve some: `crossover rehearse` knows them"
            )
        return list_due(trace, prompts, {"": None})

    return make


def _make_cost(values: dict[str, Any]) -> Cost:  # Any: see bench
    cost = Cost(gpus={EVERY: values["gpu_count"]} if values["gpu_count"] else {}, price=values["gpu_price"])
    try:
        cost.check()
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return cost


def _measure_this_client(context: click.Context, values: dict[str, Any]) -> None:  # Any: see bench
    if {name for name in context.params if is_given(context, name)} - WITH_NULL:
        raise click.UsageError(
            "--null has a backend and a load of its own: it goes with --concurrency, --window, --json"
        )
    window_s = values["window_s"] if is_given(context, "window_s") else WINDOW_S
    ceiling = _run(measure_ceiling(values["concurrency"] or STREAMS, window_s))
    if values["as_json"]:
        click.echo(orjson.dumps(asdict(ceiling) | {"doubts": ceiling.doubts}, option=orjson.OPT_INDENT_2))
    else:
        print_ceiling(ceiling)


def _run(work: Coroutine[Any, Any, T]) -> T:  # Any: what a coroutine yields to asyncio
    try:
        return uvloop.run(work)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (MeasurementError, ValueError) as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(getattr(exc, "exit_code", 2)) from None
