"""`crossover accuracy`: two endpoints and tasks in; tables, a run folder and an exit code out."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import click
import httpx
import orjson

from engines.accuracy.cost import parse_price
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Item, select
from engines.accuracy.reference_set import make_items
from engines.accuracy.report import list_sections
from engines.accuracy.result import EXIT_CODES, Folder
from engines.accuracy.run import Options, run
from engines.accuracy.task_file import read_tasks
from engines.sections import render_markdown, render_text

REFERENCE = "reference"
REFERENCE_ITEMS = 60  # of each task
CANNOT_MEASURE = 2
INTERRUPTED = 130


def _clean_url(_ctx: click.Context, _param: click.Parameter, url: str) -> str:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise click.BadParameter(str(exc)) from exc
    if parts.scheme not in {"http", "https"} or not parts.host:
        raise click.BadParameter("must look like http://host:port")
    return url.rstrip("/").removesuffix("/v1")


def _parse_endpoint(ctx: click.Context, param: click.Parameter, text: str) -> str:
    if "://" in text:
        return _clean_url(ctx, param, text)
    if not re.fullmatch(r"[a-z0-9_-]+", text):
        raise click.BadParameter("must be a URL, http://host:port, or the name of a backend")
    return text


def _check_key(_ctx: click.Context, _param: click.Parameter, key: str | None) -> str | None:
    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise click.BadParameter("must be printable ASCII without blanks")  # the key itself stays off the screen
    return key


def _parse_cost(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else parse_price(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


NATS = click.FloatRange(min=0)
WHERE = "URL|BACKEND"


@click.command(context_settings={"show_default": True})
@click.option("--a", required=True, callback=_parse_endpoint, metavar=WHERE, help="The endpoint to keep up with.")
@click.option("--b", required=True, callback=_parse_endpoint, metavar=WHERE, help="The endpoint that may lose.")
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    envvar="CROSSOVER_URL",
    callback=_clean_url,
    show_envvar=True,
    help="The gateway whose backends --a and --b name.",
)
@click.option(
    "--key", envvar="CROSSOVER_OPERATOR_KEY", callback=_check_key, show_envvar=True, help="The gateway's operator key."
)
@click.option("--key-a", callback=_check_key, help="API key of A, where that is a URL.")
@click.option("--key-b", callback=_check_key, help="API key of B, where that is a URL.")
@click.option("--model", help="Which model, of both.  [default: the first that each serves]")
@click.option("--model-a", help="Which model of A.")
@click.option("--model-b", help="Which model of B.")
@click.option("--tasks", required=True, metavar="FILE|reference", help="A task file, or the reference model's tasks.")
@click.option(
    "--items", "max_items", type=click.IntRange(min=1), help="Most items of each task.  [default: all; reference 60]"
)
@click.option("--only", multiple=True, metavar="TASK", help="Ask this task; may be repeated.")
@click.option("--skip", multiple=True, metavar="TASK", help="Leave this task out; may be repeated.")
@click.option("--in-flight", type=click.IntRange(1, 1024), default=8, help="Items at a time.")
@click.option("--top", type=click.IntRange(1, 20), default=5, help="Likeliest tokens of each place.")
@click.option(
    "--allow",
    "points",
    type=click.FloatRange(0, 100),
    default=0.0,
    help="Points of score, of 100, that B may lose.",
)
@click.option(
    "--allow-surprisal",
    "surprisal",
    type=NATS,
    default=0.0,
    help="Nats per token by which B may find right answers less likely.",
)
@click.option(
    "--allow-divergence", "divergence", type=NATS, help="Nats per token of KL divergence.  [default: not judged]"
)
@click.option("--confidence", type=click.FloatRange(0.5, 0.9999), default=0.95, help="Of all intervals.")
@click.option("--rule-out", "must_rule_out", is_flag=True, help="Exit 2 unless more than is allowed is ruled out.")
@click.option("--cost-a", callback=_parse_cost, metavar="PRICE", help="What A costs: --cost-b has the forms.")
@click.option(
    "--cost-b",
    callback=_parse_cost,
    metavar="PRICE",
    help="1.30 per million tokens, or 2x2.50@18000 for two GPUs at 2.50 an hour that give 18,000 tok/s together.",
)
@click.option("--out", type=click.Path(path_type=Path), default="runs", help="Parent of the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout; progress goes to stderr.")
def accuracy(**values: Any) -> None:  # Any: click's; Options gives the types
    """Find what a precision or an engine loses: the same items asked of two endpoints, with intervals.

    Answers are greedy. Each item is right or wrong on either side. Where both endpoints return log-probabilities, it is
    also measured how likely each finds the right answers, and how far their next tokens are apart.

    \b
    Examples:
      crossover accuracy --a http://bf16:8000 --b http://fp8:8000 --tasks mine.jsonl --allow 1
      crossover accuracy --url http://gpu-node:8080 --a vllm --b triton --tasks mine.jsonl
      crossover accuracy --url http://gpu-node:8080 --a vllm --b triton --tasks mine.jsonl --cost-a 1.30 --cost-b 0.90

    Exit codes: 0 no loss beyond what is allowed was found; 1 a loss; 2 it could not be measured, or with --rule-out
    not be ruled out; 130 interrupted.
    """
    options = Options(**values)
    try:
        items = _read(options)
        folder = Folder(options.out)
        with click.progressbar(length=len(items), label=f"asking both {len(items)} items", file=sys.stderr) as bar:
            result = asyncio.run(run(options, items, folder, lambda: bar.update(1)))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (CannotMeasure, OSError) as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(CANNOT_MEASURE) from None
    sections = list_sections(result)
    folder.write(result, render_markdown(sections))
    click.echo(f"{render_text(sections)}\n{folder.path}", err=options.as_json)
    if options.as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2))
    raise SystemExit(EXIT_CODES[result.verdict])


def _read(options: Options) -> list[Item]:
    is_ours = options.tasks == REFERENCE
    items = make_items(options.max_items or REFERENCE_ITEMS) if is_ours else read_tasks(Path(options.tasks))
    try:
        return select(items, options.only, options.skip, options.max_items)
    except ValueError as exc:
        raise CannotMeasure(f"{options.tasks}: {exc}") from exc
