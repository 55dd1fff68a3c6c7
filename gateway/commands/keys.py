"""`crossover keys create|list|revoke|rotate`: the keys of a gateway on this machine, whether it runs or not.

In: a configuration and a name. Out: a secret on stdout, once; or a table. The gateway sees the change by itself.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import click
from rich import box
from rich.console import Console
from rich.table import Table

from gateway.access import Key, KeyFile, KeyFileUnreadable, KeyRefused, Scope
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


CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The gateway's configuration; by default $CROSSOVER_CONFIG, else crossover.yaml here.",
)
EXPIRES = click.option("--expires", "lifetime", callback=_read_span, help="When it ends: 30d, 12h; by default never.")


@click.group()
def keys() -> None:
    """Create, list, revoke or rotate the keys that a gateway asks its callers for.

    A running gateway goes by every change at once. The first key for inference closes the API to callers without one.
    Run it as the user that the gateway runs as, on its machine.

    \b
    Examples:
      crossover keys create alice -c crossover.yaml
      crossover keys create ci --scope loadtest --expires 30d
      crossover keys rotate alice --overlap 1d
      crossover keys revoke alice

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
@CONFIG
def create(name: str, scopes: tuple[str, ...], lifetime: timedelta | None, config: Path | None) -> None:
    """Create a key and print it: it is shown this once, and kept as a hash.

    \b
    Example:
      crossover keys create alice -c crossover.yaml
    """
    with _opened(config) as file:
        click.echo(file.create(name, tuple(dict.fromkeys(map(Scope, scopes))), lifetime))


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
    table = Table("name", "id", "scopes", "created", "expires", "state", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(" ".join(cell) if isinstance(cell, list) else cell or "never" for cell in row.values()))
    Console().print(table)


def _describe(key: Key, now: datetime) -> dict[str, str | list[str] | None]:
    state = "valid" if key.is_valid(now) else "revoked" if key.revoked else "expired"
    return {
        "name": key.name,
        "id": key.id,
        "scopes": [scope.value for scope in key.scopes],
        "created": key.created.isoformat(timespec="seconds"),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
        "state": state,
    }


@contextmanager
def _opened(config: Path | None) -> Iterator[KeyFile]:
    """Yields the keys of the configured gateway; every way they fail becomes one line and an exit code."""
    try:
        yield KeyFile(read_settings("keys", config).state_folder)
    except (KeyRefused, KeyFileUnreadable) as exc:
        click.echo(f"crossover keys: {exc}", err=True)
        sys.exit(1 if isinstance(exc, KeyRefused) else 2)
