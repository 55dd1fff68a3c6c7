"""`crossover keys create|limit|list|revoke|rotate|usage`: the keys of a gateway, whether it runs or not.

In: a configuration and a name. Out: a secret on stdout, once; a table, or CSV. The gateway sees the change by itself.
"""

import csv
import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich import box
from rich.console import Console
from rich.table import Table

from gateway.access import DayUse, Key, KeyFile, KeyFileUnreadable, KeyRefused, Limits, Scope, UsageLog
from gateway.commands.config import CONFIG
from gateway.commands.options import read_settings

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
MAX_SPAN_S = 10 * 366 * 86_400

Decorated: TypeAlias = Callable[..., object]


def _read_span(_ctx: click.Context, _param: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    span = found and timedelta(**{UNITS[found[2]]: int(found[1])})
    if span is None or span.total_seconds() > MAX_SPAN_S:
        raise click.BadParameter("must look like 90s, 15m, 12h or 30d, ten years at most")
    return span


EXPIRES = click.option("--expires", "lifetime", callback=_read_span, help="When it ends: 30d, 12h; by default never.")
AMOUNT = click.IntRange(1, 10**12)
DAY = click.DateTime(["%Y-%m-%d"])
LIMITS = (
    click.option("--requests-per-minute", type=AMOUNT, help="At most so many requests a minute."),
    click.option("--tokens-per-minute", type=AMOUNT, help="At most so many tokens a minute, prompts and answers."),
    click.option("--in-flight", type=AMOUNT, help="At most so many answers at once; each choice is one."),
    click.option("--tokens-per-day", type=AMOUNT, help="At most so many tokens a day, in UTC."),
    click.option("--model", "models", multiple=True, help="Only this model; may be given several times."),
    click.option("--priority", type=click.IntRange(-8, 7), help="No priority before this one; lower goes first."),
)


def take_limits(command: Decorated) -> Decorated:
    """Gives a command the options of LIMITS, and their values as one argument."""

    @wraps(command)
    def with_limits(**options: Any) -> object:  # Any: click's values
        given = {name: options.pop(name) or None for name in Limits.__slots__ if name != "priority"}
        limits = Limits(**given, priority=options.pop("priority"))
        return command(**options, limits=None if limits == Limits() else limits)

    return reduce(lambda decorated, option: option(decorated), reversed(LIMITS), with_limits)


@click.group()
def keys() -> None:
    """Create, limit, list, revoke or rotate the keys that a gateway asks its callers for.

    A running gateway goes by every change at once. The first key for inference closes the API to callers without one.
    Run it as the user that the gateway runs as, on its machine.

    \b
    Examples:
      crossover keys create alice -c crossover.yaml
      crossover keys create ci --scope loadtest --expires 30d
      crossover keys limit alice --requests-per-minute 60 --in-flight 4
      crossover keys rotate alice --overlap 1d
      crossover keys revoke alice
      crossover keys usage --from 2026-11-01

    Exit codes: 0 done; 1 there is no such key, or one already; 2 bad arguments or configuration, or keys that cannot be
    read.
    """


@keys.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    default=[Scope.INFERENCE.value],
    show_default=True,
    help="May be given several times. loadtest: pins, run tags and inference; operator: everything.",
)
@EXPIRES
@take_limits
@CONFIG
def create(
    name: str, scopes: tuple[str, ...], lifetime: timedelta | None, limits: Limits | None, config: Path | None
) -> None:
    """Create a key and print it: it is shown this once, and kept as a hash.

    \b
    Example:
      crossover keys create alice -c crossover.yaml
    """
    with _opened(config) as file:
        click.echo(file.create(name, tuple(dict.fromkeys(map(Scope, scopes))), lifetime, limits))


@keys.command()
@click.argument("name")
@take_limits
@CONFIG
def limit(name: str, limits: Limits | None, config: Path | None) -> None:
    """Give the keys of a name these limits, in place of all that they had; without options, none.

    \b
    Examples:
      crossover keys limit alice --requests-per-minute 60 --tokens-per-minute 100000 --in-flight 4
      crossover keys limit alice
    """
    with _opened(config) as file:
        file.limit(name, limits)


@keys.command()
@click.argument("name")
@click.option(
    "--overlap", callback=_read_span, default="0s", show_default=True, help="How long the old key stays valid: 1d, 15m."
)
@EXPIRES
@CONFIG
def rotate(name: str, overlap: timedelta, lifetime: timedelta | None, config: Path | None) -> None:
    """Give a name another key of the same scopes, and print it. It expires as the old one would have.

    \b
    Example:
      crossover keys rotate alice --overlap 1d
    """
    with _opened(config) as file:
        click.echo(file.rotate(name, overlap, lifetime))


@keys.command()
@click.argument("name")
@CONFIG
def revoke(name: str, config: Path | None) -> None:
    """End all keys of a name, or the one of an id, at once and for good.

    \b
    Example:
      crossover keys revoke alice
    """
    with _opened(config) as file:
        file.revoke(name)


@keys.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@CONFIG
def list_(as_json: bool, config: Path | None) -> None:
    """List all keys, those that have ended too. None can be used from what is shown.

    \b
    Example:
      crossover keys list -c crossover.yaml
    """
    with _opened(config) as file:
        rows = [_describe(key, datetime.now(UTC)) for key in file.read()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "id", "scopes", "created", "expires", "state", "limits", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(" ".join(cell) if isinstance(cell, list) else cell or "never" for cell in row.values()))
    Console().print(table)


@keys.command()
@click.option("--from", "since", type=DAY, default="1970-01-01", help="The first day, in UTC: 2026-11-01.")
@click.option("--to", "until", type=DAY, default="9999-12-31", help="The last day.")
@CONFIG
def usage(since: datetime, until: datetime, config: Path | None) -> None:
    """Print as CSV what each key has used by day, of the last 400 days.

    \b
    Example:
      crossover keys usage --from 2026-11-01 --to 2026-11-30
    """
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(DayUse._fields)
    try:
        rows.writerows(UsageLog(read_settings("keys", config).state_folder).read(since.date(), until.date()))
    except sqlite3.Error as exc:
        click.echo(f"crossover keys: the usage cannot be read: {exc}", err=True)
        sys.exit(2)


def _describe(key: Key, now: datetime) -> dict[str, str | list[str] | None]:
    return {
        "name": key.name,
        "id": key.id,
        "scopes": [scope.value for scope in key.scopes],
        "created": key.created.isoformat(timespec="seconds"),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
        "state": key.find_state(now),
        "limits": str(key.limits or Limits()),
    }


@contextmanager
def _opened(config: Path | None) -> Iterator[KeyFile]:
    """Yields the keys of the configured gateway; every way they fail becomes one line and an exit code."""
    try:
        yield KeyFile(read_settings("keys", config).state_folder)
    except (KeyRefused, KeyFileUnreadable) as exc:
        click.echo(f"crossover keys: {exc}", err=True)
        sys.exit(1 if isinstance(exc, KeyRefused) else 2)
