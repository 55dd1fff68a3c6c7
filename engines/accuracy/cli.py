"""`crossover accuracy`: two endpoints and tasks in; tables, a run folder and an exit code out."""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx
import orjson
from rich.console import Console

from engines.accuracy.cost import parse_price
from engines.accuracy.endpoint import Place
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.findings import Allowed
from engines.accuracy.items import Item, select
from engines.accuracy.reference_set import make_items
from engines.accuracy.report import print_result, render_markdown
from engines.accuracy.result import EXIT_CODES, Folder, Tasks, name_run
from engines.accuracy.run import Order, run
from engines.accuracy.screen import Screen
from engines.accuracy.task_file import read_tasks

REFERENCE = "reference"
REFERENCE_ITEMS = 60  # of each task
CANNOT_MEASURE = 2
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    a: str
    b: str
    url: str
    key: str | None
    key_a: str | None
    key_b: str | None
    model: str | None
    model_a: str | None
    model_b: str | None
    tasks: str
    items: int | None
    only: tuple[str, ...]
    skip: tuple[str, ...]
    in_flight: int
    top: int
    points: float
    surprisal: float
    divergence: float | None
    confidence: float
    must_rule_out: bool
    cost_a: float | None
    cost_b: float | None
    out: Path
    as_json: bool

    @property
    def places(self) -> tuple[Place, Place]:
        """A URL is an endpoint; any other word is a backend of the gateway at --url, which alone gets its key."""
        return (
            self._place("A", self.a, self.key_a, self.model_a or self.model),
            self._place("B", self.b, self.key_b, self.model_b or self.model),
        )

    def order(self, items: list[Item]) -> Order:
        """The digest is of what is asked: the same of two files that differ in white space only."""
        digest = hashlib.sha256(repr(items).encode()).hexdigest()
        return Order(
            places=self.places,
            prices=(self.cost_a, self.cost_b),
            tasks=Tasks(self.tasks, digest, len(items)),
            items=items,
            in_flight=self.in_flight,
            top=self.top,
            allowed=Allowed(self.points, self.surprisal, self.divergence),
            confidence=self.confidence,
            must_rule_out=self.must_rule_out,
        )

    def _place(self, name: str, where: str, key: str | None, model: str | None) -> Place:
        if "://" in where:
            return Place(name, where, model, None, key)
        return Place(name, self.url, model, where, self.key)


def _clean_url(_ctx: click.Context, _param: click.Parameter, url: str) -> str:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise click.BadParameter(str(exc)) from exc
    if parts.scheme not in {"http", "https"} or not parts.host:
        raise click.BadParameter("must look like http://host:port")
    return url.rstrip("/").removesuffix("/v1")


def _parse_place(ctx: click.Context, param: click.Parameter, text: str) -> str:
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


@click.command()
@click.option(
    "--a",
    required=True,
    callback=_parse_place,
    metavar="URL|BACKEND",
    help="What is to be kept up with: a URL, or a backend.",
)
@click.option("--b", required=True, callback=_parse_place, metavar="URL|BACKEND", help="What is held against it.")
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    envvar="CROSSOVER_URL",
    callback=_clean_url,
    show_default=True,
    show_envvar=True,
    help="The gateway whose backends --a and --b name.",
)
@click.option(
    "--key",
    envvar="CROSSOVER_OPERATOR_KEY",
    callback=_check_key,
    show_envvar=True,
    help="Its operator key, if it has one.",
)
@click.option("--key-a", callback=_check_key, help="API key of A, where that is a URL.")
@click.option("--key-b", callback=_check_key, help="API key of B, where that is a URL.")
@click.option("--model", help="Which model, of both.  [default: the first that each serves]")
@click.option("--model-a", help="Which model of A.")
@click.option("--model-b", help="Which model of B.")
@click.option(
    "--tasks", required=True, metavar="FILE|reference", help="JSON lines (docs/accuracy.md), or the reference model's."
)
@click.option("--items", type=click.IntRange(min=1), help="Most items of each task.  [default: all; reference 60]")
@click.option("--only", multiple=True, metavar="TASK", help="Ask this task; may be repeated.")
@click.option("--skip", multiple=True, metavar="TASK", help="Leave this task out; may be repeated.")
@click.option("--in-flight", type=click.IntRange(1, 1024), default=8, show_default=True, help="Items at a time.")
@click.option(
    "--top", type=click.IntRange(1, 20), default=5, show_default=True, help="Likeliest tokens to compare at each place."
)
@click.option(
    "--allow",
    "points",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    help="Points of score, of 100, that B may lose.",
)
@click.option(
    "--allow-surprisal",
    "surprisal",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Nats per token by which B may find right answers less likely.",
)
@click.option(
    "--allow-divergence",
    "divergence",
    type=click.FloatRange(min=0),
    help="Nats per token of KL divergence.  [default: told, not judged]",
)
@click.option(
    "--confidence", type=click.FloatRange(0.5, 0.9999), default=0.95, show_default=True, help="Of all intervals."
)
@click.option("--rule-out", "must_rule_out", is_flag=True, help="Exit 2 unless more than is allowed is ruled out.")
@click.option("--cost-a", callback=_parse_cost, metavar="PRICE", help="What A costs: --cost-b has the forms.")
@click.option(
    "--cost-b",
    callback=_parse_cost,
    metavar="PRICE",
    help="1.30 per million tokens, or 2x2.50@18000 for two GPUs at 2.50 an hour that give 18,000 tok/s together.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), default="runs", show_default=True, help="Where the run's folder goes."
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json on stdout; progress goes to stderr.")
def accuracy(**values: Any) -> None:  # Any: click's; Options gives the types
    """Find what a precision or an engine loses: the same items asked of two endpoints, with intervals.

    Answers are greedy. Each item is right or wrong on either side; where log-probabilities are told, how likely right
    answers are and how far next tokens are apart are measured too.

    \b
    Examples:
      crossover accuracy --a http://bf16:8000 --b http://fp8:8000 --tasks mine.jsonl --allow 1
      crossover accuracy --url http://gpu-node:8080 --a vllm --b triton --tasks mine.jsonl
      crossover accuracy --url http://gpu-node:8080 --a vllm --b triton --tasks mine.jsonl --cost-a 1.30 --cost-b 0.90

    Exit codes: 0 no loss beyond what is allowed was found; 1 a loss; 2 it could not be measured, or with --rule-out
    not be ruled out; 130 interrupted.
    """
    options = Options(**values)
    console = Console(stderr=options.as_json)
    try:
        order = options.order(_read(options))
        folder = Folder(options.out, name_run())
        with Screen(len(order.items)) as screen:
            result = asyncio.run(run(order, folder, screen))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (CannotMeasure, OSError) as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(CANNOT_MEASURE) from None
    folder.write(result, render_markdown(result))
    print_result(console, result)
    console.print(str(folder.path), highlight=False)
    if options.as_json:
        click.echo(orjson.dumps(result.to_json(), option=orjson.OPT_INDENT_2))
    raise SystemExit(EXIT_CODES[result.verdict])


def _read(options: Options) -> list[Item]:
    is_ours = options.tasks == REFERENCE
    items = make_items(options.items or REFERENCE_ITEMS) if is_ours else read_tasks(Path(options.tasks))
    try:
        return select(items, options.only, options.skip, options.items)
    except ValueError as exc:
        raise CannotMeasure(f"{options.tasks}: {exc}") from exc
