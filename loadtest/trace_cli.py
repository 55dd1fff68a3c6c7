"""`crossover trace`: brings traffic that others have published, or a gateway has recorded, into the form of traces."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich import box
from rich.console import Console
from rich.table import Column, Table
from tokenizers import Tokenizer

from loadtest.rehearsal.find_trace import PUBLISHED, read_recorded
from loadtest.rehearsal.forms import FORMS, Completion, Source, recognise
from loadtest.rehearsal.reshape import Reshape, reshape
from loadtest.rehearsal.trace_figures import Lengths, TraceFigures, count_rates, find_trace_figures
from loadtest.rehearsal.trace_file import HEADER, list_lines, read_header, read_trace, write_trace

Options: TypeAlias = Mapping[str, Any]  # Any: click's

CHANGES = ("peak", "seconds", "max_prompt", "scale_prompt")  # options that are the keys of Reshape
OWN = "crossover"  # the form of a trace that is imported again
TOO_LONG = "prompt too long"
TOKENS_PER_WORD = Fraction(4, 3)  # of English text
COLUMNS, ROWS = 72, 8
BARS = " ▁▂▃▄▅▆▇█"


@click.group()
def trace() -> None:
    """Import traffic as a trace, and look at traces.

    A trace is what `crossover rehearse`, `bench`, `calibrate` and `policy simulate` take as --trace.
    """


@trace.command("import", context_settings={"show_default": True})
@click.argument("file")
@click.option("--form", type=click.Choice((*FORMS, OWN)), help="Form of the file.  [default: by its content]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The trace.  [default: stdout]")
@click.option("--name", help="Of the trace.  [default: the file's]")
@click.option("--peak", type=float, help="Requests a second in the busiest twentieth: conversations are left out.")
@click.option("--seconds", type=float, help="From the first request to the last: time is compressed.")
@click.option("--max-prompt", type=int, help="Drop requests whose prompts have more tokens.")
@click.option("--scale-prompt", type=float, default=1.0, help="Multiply the tokens of all prompts.")
@click.option("--seed", type=int, default=1, help="Of what is drawn at random.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=1.0, help="ShareGPT: conversations a second.")
@click.option("--wait", "wait_s", type=click.FloatRange(0), default=10.0, help="ShareGPT: mean pause before a turn.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="ShareGPT: folder with tokenizer.json.")
def import_trace(
    file: str, form: str | None, out: Path | None, name: str | None, **options: Any
) -> None:  # Any: click's
    """Write FILE, in the form of Azure, BurstGPT, Mooncake or ShareGPT, or a trace, as a trace.

    Time is compressed to --seconds, waits of users included; then whole conversations are left out at random until the
    busiest twentieth of the time has --peak requests a second. Without --seconds time is compressed only where the
    source has fewer.

    \b
    Examples:
      crossover trace import AzureLLMInferenceTrace_conv.csv --peak 36 --seconds 50 --out chat.jsonl
      crossover trace import conversation_trace.jsonl --max-prompt 8000 --out conversations.jsonl
      crossover trace import ShareGPT.json --rate 4 --tokenizer /models/llama-3.1-8b --out sharegpt.jsonl

    Exit codes: 0 written; 2 bad arguments, or a file that is damaged.
    """
    try:
        changes = {key: options[key] for key in CHANGES if options[key] not in {None, 1.0}}
        how = Reshape.parse([f"{key}={value}" for key, value in changes.items()])
        with Console(stderr=True).status(f"importing {file}"):
            origin, source = _read(file, form, options)
            requests, too_long = reshape(source.requests, how, options["seed"])
        dropped = {reason: count for reason, count in (*source.dropped.items(), (TOO_LONG, too_long)) if count}
        title = name or Path(file).name.partition(".")[0]
        header = {HEADER: title, **origin, **changes, "seed": options["seed"], "dropped": dropped}
        if out:
            write_trace(out, requests, header)
        else:
            click.echo("\n".join(list_lines(requests, header)))
    except (OSError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc
    lost = "".join(f", {count} dropped ({reason})" for reason, count in dropped.items())
    click.echo(f"{title}: {len(requests)} of {len(source.requests)} requests{lost}", err=True)


def _read(file: str, name: str | None, options: Options) -> tuple[Mapping[str, object], Source]:
    """Reads a file of any form. Returns what is known of its origin, and its requests. Raises OSError, ValueError."""
    if file in PUBLISHED:
        return _read_own(PUBLISHED[file])
    counter, counted = _make_counter(options["tokenizer"])
    completion = Completion(options["rate"], options["wait_s"], options["seed"], counter)
    with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8-sig", errors="replace") as text:
        try:
            name = name or recognise(text.read(1 << 16)) or OWN
            text.seek(0)
            source = None if name == OWN else FORMS[name].read(text, completion)
        except (ValueError, EOFError, zlib.error) as exc:
            raise ValueError(f"{file}, {exc}") from exc
    if source is None:
        return _read_own(Path(file))
    form = FORMS[name]
    added = {"rate": completion.rate, "wait_s": completion.wait_s, "tokens": counted} if form.is_completed else {}
    return {"source": form.source, "licence": form.licence, **added}, source


def _read_own(path: Path) -> tuple[Mapping[str, object], Source]:
    requests, header = read_trace(path), read_header(path)
    return {key: header[key] for key in ("source", "licence") if key in header}, Source(requests, {})


def _make_counter(tokenizer: Path | None) -> tuple[Callable[[str], int], str]:
    """Returns what counts tokens, and how it does. Raises ValueError for a tokenizer that does not load."""
    if tokenizer is None:
        return lambda text: math.ceil(TOKENS_PER_WORD * len(text.split())), f"{TOKENS_PER_WORD} of the words"
    file = tokenizer / "tokenizer.json"
    try:
        loaded = Tokenizer.from_file(str(file))
    except Exception as exc:  # the library raises nothing narrower
        raise ValueError(f"--tokenizer: {file}: {exc}") from exc
    return lambda text: len(loaded.encode(text, add_special_tokens=False)), f"of {tokenizer.name}"


@trace.command("show")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Figures as JSON on stdout.")
def show_trace(file: str, as_json: bool) -> None:
    """Draw the rate of a trace over time, and list its lengths.

    \b
    Examples:
      crossover trace show chat.jsonl
      crossover trace show "azure-chat peak=36 seconds=50"

    Exit codes: 0 shown; 2 bad arguments, or a file that is damaged.
    """
    try:
        requests = read_recorded(file)
        path = PUBLISHED.get(file.split(maxsplit=1)[0], Path(file))
        header, figures = read_header(path), find_trace_figures(requests)
    except (OSError, ValueError) as exc:
        raise click.UsageError(str(exc)) from exc
    if as_json:
        click.echo(json.dumps(asdict(figures), indent=2))
        return
    console = Console()
    for line in (*_describe(header), *_draw(count_rates(requests, COLUMNS), figures.seconds)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    _print(console, figures)


def _describe(header: Mapping[str, object]) -> list[str]:
    parts = [str(header[key]) for key in (HEADER, "source", "licence") if key in header]
    return [" · ".join(parts)] if parts else []


def _draw(rates: Sequence[float], seconds: float) -> list[str]:
    """Draws columns of ROWS lines, with the highest rate beside the first line and the time below."""
    most = max(rates)
    heights = [rate / most * ROWS * (len(BARS) - 1) for rate in rates]
    lines = []
    for row in reversed(range(ROWS)):
        levels = (min(max(round(height - row * (len(BARS) - 1)), 0), len(BARS) - 1) for height in heights)
        label = f"{most:8.3g}/s" if row == ROWS - 1 else " " * 10
        lines.append(f"{label} ┤{''.join(BARS[level] for level in levels)}")
    return [*lines, f"{' ' * 10} └{'─' * COLUMNS}", f"{' ' * 12}0 s{f'{seconds:.0f} s':>{COLUMNS - 3}}"]


def _print(console: Console, figures: TraceFigures) -> None:
    table = Table(
        "tokens", *(Column(name, justify="right") for name in ("mean", "p50", "p95", "max")), box=box.SIMPLE_HEAD
    )
    for label, lengths in (("prompt", figures.prompt_tokens), ("answer", figures.tokens)):
        table.add_row(label, *_show(lengths))
    console.print(table)
    for line in (
        f"{figures.requests} requests in {figures.seconds:.0f} s, of which {figures.waiting} wait for an answer",
        f"{figures.conversations} conversations",
        f"{figures.requests_per_s:.3g} requests/s, {figures.peak_per_s:.3g} in the busiest twentieth",
        f"{figures.repeated:.1%} of the prompts' tokens repeat the beginning of an earlier prompt",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show(lengths: Lengths) -> tuple[str, ...]:
    return f"{lengths.mean:.0f}", str(lengths.p50), str(lengths.p95), str(lengths.most)
