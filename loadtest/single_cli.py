"""`crossover bench`: one workload against one endpoint, as figures on a terminal or as JSON."""

import asyncio
import secrets
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import orjson
import uvloop
from click.core import ParameterSource
from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.arrivals import Arrivals, Kind
from loadtest.ceiling_cli import print_ceiling, refuse_others
from loadtest.cell import summarise
from loadtest.cli import parse_slo, parse_target
from loadtest.closed_loop import ClosedLoop
from loadtest.cost import EVERY, NO_COST, Price
from loadtest.cost_options import gpu_price, make_cost
from loadtest.errors import CalibrationError, Unreachable
from loadtest.judge import Judge
from loadtest.open_loop import OpenLoop
from loadtest.plan import Pair, Plan
from loadtest.probe import probe
from loadtest.report.words import show_money, show_ms, show_rate, show_tokens
from loadtest.sender import Sender
from loadtest.single import Figures, figures_of_answers, figures_of_cell, price
from loadtest.slo import Slo
from loadtest.stats import Percentiles
from loadtest.target import Target
from loadtest.work import Asked, Place

WARM_SHARE = 0.25  # of an open loop's window
LEAST_WINDOW_S = 1e-3


@dataclass(frozen=True, slots=True)
class Options:
    target: Target
    key: str | None
    model: str | None
    backend: str
    concurrency: int | None
    rate: float | None
    last_rate: float | None
    kind: Kind
    tokens: int
    prompt_words: int
    requests: int
    window_s: float
    any_length: bool
    slo: Slo | None
    gpu_price: Price | None
    gpu_count: int | None
    seed: int | None
    is_null: bool
    as_json: bool


@click.command()
@click.option(
    "--url", "target", default="http://127.0.0.1:8080", callback=parse_target, show_default=True, help="The endpoint."
)
@click.option("--key", envvar="OPENAI_API_KEY", show_envvar=True, help="Its API key, if it wants one.")
@click.option("--model", help="Which model; the first of /v1/models if not given.")
@click.option("--pin", "backend", default="", help="A backend of the gateway that has to serve it all.")
@click.option("--concurrency", type=click.IntRange(1), help="Closed loop: so many requests in flight all the time.")
@click.option("--rate", type=float, help="Open loop: requests per second, sent when due whatever becomes of others.")
@click.option("--ramp-to", "last_rate", type=float, help="The rate grows, or falls, to this one in a straight line.")
@click.option(
    "--arrivals",
    "kind",
    type=click.Choice(["poisson", "constant"]),
    default="poisson",
    show_default=True,
    help="How they are spread.",
)
@click.option("--tokens", type=click.IntRange(2), default=256, show_default=True, help="Length of every answer.")
@click.option("--prompt-words", type=click.IntRange(1), default=48, show_default=True, help="Length of every prompt.")
@click.option("--window", "window_s", type=float, default=20.0, show_default=True, help="Least seconds measured.")
@click.option(
    "--requests", type=click.IntRange(0), default=0, help="Closed loop: least requests measured, and no --window then."
)
@click.option("--any-length", is_flag=True, help="Take answers that end early: for endpoints without ignore_eos.")
@click.option("--slo", callback=parse_slo, help="Count goodput by these limits in seconds, like ttft=0.5,tpot=0.03.")
@gpu_price
@click.option("--gpu-count", type=click.IntRange(1), help="GPUs behind the endpoint: tells tokens per GPU-hour.")
@click.option("--seed", type=int, help="Of prompts and arrivals; a new one each time if not given.")
@click.option("--null", "is_null", is_flag=True, help="Measure this client: against a server here that does no work.")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout.")
@click.pass_context
def bench(context: click.Context, /, **values: Any) -> None:  # Any: click's; Options gives the types
    """Load any OpenAI endpoint with one workload and say how fast it is.

    Closed loop (--concurrency) or open loop (--rate). In an open loop latencies count from when a request was due, so
    that a server which falls behind shows it.

    \b
    Examples:
      crossover bench --url http://gpu-node:8080 --concurrency 64
      crossover bench --url http://gpu-node:8080 --concurrency 64 --requests 640
      crossover bench --url http://gpu-node:8000/v1 --rate 12 --tokens 128 --slo ttft=0.5,tpot=0.03
      crossover bench --null

    Exit codes: 0 measured; 2 bad arguments or no endpoint; 3 an answer was not the work asked for.
    """
    options = Options(**values)
    if options.is_null:
        _print_ceiling(context, options)
        return
    if (options.concurrency is None) == (options.rate is None):
        raise click.UsageError("one of --concurrency and --rate says which load it is to be")
    options = _bound(context, options)
    cost = make_cost(options.gpu_price, {EVERY: options.gpu_count} if options.gpu_count else None)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(_run(options, secrets.randbits(32) if options.seed is None else options.seed))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (CalibrationError, ValueError) as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(getattr(exc, "exit_code", 2)) from None
    _print(price(figures, cost or NO_COST, options.backend), options)


def _bound(context: click.Context, options: Options) -> Options:
    """Whose window ends by requests, and by time only if that was asked for too."""
    if not options.requests:
        return options
    if options.rate is not None:
        raise click.UsageError("--requests: of a closed loop; in an open one --window and --rate say how many")
    return options if _is_given(context, "window_s") else replace(options, window_s=LEAST_WINDOW_S)


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _print_ceiling(context: click.Context, options: Options) -> None:
    refuse_others(context)
    window_s = options.window_s if _is_given(context, "window_s") else None
    try:
        print_ceiling(options.concurrency, window_s, as_json=options.as_json)
    except CalibrationError as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(exc.exit_code) from None


async def _run(options: Options, seed: int) -> Figures:
    """Raises CalibrationError; ValueError for rates and windows that are none."""
    target = replace(options.target, key=options.key)
    model = options.model or await _find_model(target)
    judge = Judge(is_exact=not options.any_length)
    sender = Sender(target, model, "", seed, options.prompt_words, counted=True, is_exact=not options.any_length)
    sender, _ = await probe(sender, judge, Asked(options.backend, Place(-1, 0, 0), options.tokens))
    return await (_run_closed if options.concurrency else _run_open)(options, sender, judge)


async def _find_model(target: Target) -> str:
    answer = await target.fetch("GET", "/v1/models")
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
        raise Unreachable(f"{target}/v1/models names no model: choose one with --model")
    return str(models[0]["id"])


async def _run_closed(options: Options, sender: Sender, judge: Judge) -> Figures:
    assert options.concurrency is not None
    plan = Plan(
        mode="bench",
        tokens=options.tokens,
        window_s=options.window_s,
        window_requests=2,
        window_answers=options.requests,
    )
    pair = Pair(options.concurrency, low_first=True, number=0)
    recording = await ClosedLoop(sender, judge, plan, pair, options.backend).run()
    return figures_of_cell(summarise(recording, options.tokens, options.slo))


async def _run_open(options: Options, sender: Sender, judge: Judge) -> Figures:
    """A ramp begins with the window; before it the load is warmed up at its first rate."""
    assert options.rate is not None
    warm_s = WARM_SHARE * options.window_s
    warm = Arrivals(options.rate, None, options.kind, sender.seed).within(warm_s)
    measured = Arrivals(options.rate, options.last_rate, options.kind, sender.seed + 1).within(options.window_s)
    due = [*warm, *(warm_s + at for at in measured)]
    recording = await OpenLoop(sender, judge, options.tokens, options.backend).run(due)
    start = recording.began_at + warm_s
    is_ramp = options.last_rate is not None
    return figures_of_answers(recording.answers, start, start + options.window_s, options.slo, is_ramp=is_ramp)


def _print(figures: Figures, options: Options) -> None:
    if options.as_json:
        click.echo(orjson.dumps(asdict(figures), option=orjson.OPT_INDENT_2))
        return
    console = Console()
    load = f"{options.concurrency} in flight" if options.concurrency else f"{options.rate:g} requests/s, {options.kind}"
    table = Table(title=f"{options.target}: {load}", box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading in ("", "p50", "p90", "p99"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, times in (("TTFT", figures.ttft_s), ("TPOT", figures.tpot_s), ("whole answer", figures.e2e_s)):
        table.add_row(name, *_percentiles(times))
    if figures.lag_s:
        table.add_row("sent late by", *_percentiles(figures.lag_s))
    console.print(table)
    rates = [f"{show_rate(figures.tokens_per_s)} tok/s", f"{figures.requests_per_s:.2f} requests/s"]
    rates += [f"{figures.goodput:.2f} within {options.slo}"] if figures.goodput is not None else []
    rates += [f"{figures.in_flight:.1f} in flight", f"{figures.requests} requests in {figures.window_s:.1f} s"]
    console.print(" · ".join(rates), highlight=False)
    costs = _describe_cost(figures, options.gpu_price)
    if costs:
        console.print(" · ".join(costs), highlight=False, markup=False)
    for doubt in figures.doubts:
        console.print(doubt, highlight=False, markup=False)


def _describe_cost(figures: Figures, gpu_price: Price | None) -> list[str]:
    costs = []
    if figures.tokens_per_gpu_hour is not None:
        costs.append(f"{show_tokens(figures.tokens_per_gpu_hour)} million tokens per GPU-hour")
    if figures.cost_per_million_tokens is not None and gpu_price:
        costs.append(f"{show_money(figures.cost_per_million_tokens, gpu_price)} per million tokens")
    return costs


def _percentiles(times: Percentiles) -> tuple[str, str, str]:
    return show_ms(times.p50), show_ms(times.p90), show_ms(times.p99)
