"""`crossover policy show|set`: a client of a running gateway's admin routes.

In: a URL and the keys to change. Out: a table or JSON, and an exit code. The keys of policies are routing/policies'.
"""

import getpass
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click
import httpx
from rich import box
from rich.console import Console
from rich.table import Column, Table

from gateway.commands.simulate import simulate_policies
from gateway.routing.policies import KEYS, POLICIES, SCHEMAS

TIMEOUT_S = 10.0
# Of a JSON schema. Any: click's own types and Python's.
TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": click.BOOL}

Json: TypeAlias = dict[str, Any]  # Any: what another process answers, read key by key
Decorated: TypeAlias = Callable[..., object]


class Refused(click.ClickException):
    """The gateway refused: one line on stderr."""

    exit_code = 1


class NotReached(click.ClickException):
    """No gateway answers: one line on stderr."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Admin:
    """A gateway's admin routes; every way they can fail becomes Refused or NotReached."""

    url: str
    key: str | None

    def get(self, path: str, model: str | None = None) -> Json:
        return self._send(httpx.Request("GET", self.url + path, params={"model": model} if model else None))

    def put(self, path: str, body: Mapping[str, object]) -> Json:
        return self._send(httpx.Request("PUT", self.url + path, json=body))

    def _send(self, request: httpx.Request) -> Json:
        if self.key:
            request.headers["authorization"] = f"Bearer {self.key}"
        try:
            with httpx.Client(timeout=TIMEOUT_S) as client:
                return _read(client.send(request))
        except httpx.HTTPError as exc:
            raise NotReached(f"no gateway answers at {self.url}: {str(exc) or type(exc).__name__}") from exc


def _read(response: httpx.Response) -> Json:
    try:
        body = response.json()
    except ValueError as exc:
        raise NotReached(f"{response.url} is no Crossover gateway: HTTP {response.status_code}, no JSON") from exc
    if not isinstance(body, dict) or not (response.is_success or isinstance(body.get("error"), dict)):
        raise NotReached(f"{response.url} is no Crossover gateway: HTTP {response.status_code}")
    if not response.is_success:
        raise Refused(body["error"].get("message") or f"HTTP {response.status_code}")
    return body


def _clean_url(_ctx: click.Context, _param: click.Parameter, url: str) -> str:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise click.BadParameter(str(exc)) from exc
    if parts.scheme not in {"http", "https"} or not parts.host:
        raise click.BadParameter("must look like http://host:port")
    return url.rstrip("/").removesuffix("/v1")


def _check_key(_ctx: click.Context, _param: click.Parameter, key: str | None) -> str | None:
    if key is not None and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise click.BadParameter("must be printable ASCII without blanks")  # the key itself stays off the screen
    return key


OPTIONS = (
    click.option(
        "--url",
        default="http://127.0.0.1:8080",
        envvar="CROSSOVER_URL",
        callback=_clean_url,
        show_default=True,
        show_envvar=True,
        help="The gateway.",
    ),
    click.option(
        "--key",
        envvar="CROSSOVER_OPERATOR_KEY",
        callback=_check_key,
        show_envvar=True,
        help="Its operator key, if it has one.",
    ),
    click.option("--model", help="Which model; needed by `set` when the gateway serves several."),
    click.option("--json", "as_json", is_flag=True, help="Print the gateway's JSON."),
)


def gateway_options(command: Decorated) -> Decorated:
    """Adds the options of every command that calls a running gateway."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group()
def policy() -> None:
    """Show or change how a running gateway routes requests.

    \b
    Examples:
      crossover policy show
      crossover policy set --up 56 --down 44
      crossover policy set --kind share --share 0.05

    Exit codes: 0 done; 1 the gateway refused; 2 bad arguments, or no gateway at the URL.
    """


policy.add_command(simulate_policies, "simulate")


@policy.command()
@gateway_options
def show(url: str, key: str | None, model: str | None, as_json: bool) -> None:
    """Show each model's policy, the side it stands on, and what is in flight.

    Drift is how many more requests an engine holds than it was sent: at the last reading, and steadily for some time.
    ? is unknown.

    A policy that was measured on other engines than those that run now is marked STALE.

    \b
    Example:
      crossover policy show --url http://127.0.0.1:8080
    """
    state = Admin(url, key).get("/admin/state")
    models = [entry for entry in state["models"] if model in {None, entry["model"]}]
    if not models:
        raise Refused(f"the model {model!r} does not exist")
    if as_json:
        click.echo(_dump({**state, "models": models}))
    else:
        for entry in models:
            _print_model(entry)


def _name_option(key: str) -> str:
    return f"--{key.removesuffix('_s')}"


def _read_file(_ctx: click.Context, _param: click.Parameter, path: str | None) -> object:
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as exc:
        raise click.BadParameter(f"{path}: {exc}") from exc


def policy_options(command: Decorated) -> Decorated:
    """Adds an option for each key of any policy; for one with keys of its own, the file that has them."""
    for key, schema in reversed([*KEYS.items()]):
        kinds = [kind for kind in POLICIES if key in SCHEMAS[kind]["properties"]]
        only = "" if len(kinds) == len(POLICIES) else f" (kind {', '.join(kinds)})"
        is_file = schema.get("type") not in TYPES
        form = {"callback": _read_file} if is_file else {"type": TYPES[schema["type"]]}
        help_ = f"{schema['description']} A JSON file." if is_file else schema["description"]
        option = click.option(_name_option(key), key, help=help_ + only, **form)
        command = option(command)
    return command


@policy.command(name="set")
@gateway_options
@policy_options
@click.option("--kind", type=click.Choice([*POLICIES]), help="Which policy; another kind needs its own keys.")
@click.option("--calibration", help="The calibration that measured the policy.")
def set_(url: str, key: str | None, model: str | None, as_json: bool, **changes: object) -> None:
    """Change the policy from the next request on; keys that are not named stay as they are.

    Another kind keeps the backends alone: a key of the same name means something else there.

    \b
    Example:
      crossover policy set --url http://127.0.0.1:8080 --up 56 --down 44
      crossover policy set --kind share --share 0.05
      crossover policy set --kind threshold --up 56 --down 44
    """
    named = {name: value for name, value in changes.items() if value is not None}
    if not named:
        raise click.UsageError(f"nothing to change: name at least one of {', '.join(map(_name_option, KEYS))}, --kind")
    admin = Admin(url, key)
    current = admin.get("/admin/policy", model)
    if current["kind"] not in POLICIES:
        raise Refused(f"model {current['model']} has one backend, there is nothing to choose")
    # `current` brings its version along: if somebody else changes the policy in between, the gateway refuses ours.
    is_same = named.get("kind", current["kind"]) == current["kind"]
    kept = ("model", "version", *(SCHEMAS[str(current["kind"])]["properties"] if is_same else ("low", "high")))
    body = {"kind": current["kind"], **{key: current[key] for key in kept}, "by": _whoami(), **named}
    changed = admin.put("/admin/policy", body)
    click.echo(_dump(changed) if as_json else f"{changed['model']}: {_describe(changed)}")


def _whoami() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return f"uid {os.getuid()}"


def _dump(value: object) -> str:
    return json.dumps(value, indent=2)


def _describe(policy_in_force: Json) -> str:
    shown = f"{policy_in_force['kind']} {_show_terms(policy_in_force, (*KEYS, 'calibration'))}".rstrip()
    return f"{shown} (version {policy_in_force['version']}, by {policy_in_force['by']})"


def _describe_dry(dry: Json) -> str:
    """Describes a policy on trial: its keys, and how often it would have sent a request elsewhere."""
    count = sum(sum(chosen.values()) for chosen in dry["choices"].values())
    same = sum(chosen.get(taken, 0) for taken, chosen in dry["choices"].items())
    side = "both" if dry["split"] else dry["side"]
    agrees = f"agrees on {same / count:.1%} of {count} requests" if count else "no request so far"
    shown = f"dry {dry['kind']} {_show_terms(dry, KEYS)}: on {side} for {dry['side_age_s']:.0f} s"
    return f"{shown}, {dry['switches']} switches, {agrees}"


def _show_terms(terms: Json, keys: Iterable[str]) -> str:
    """A node model is shown whole by --json alone."""
    shown = {key: "measured" if isinstance(terms[key], dict) else terms[key] for key in keys if terms[key] is not None}
    return " ".join(f"{key}={value}" for key, value in shown.items())


def _print_model(entry: Json) -> None:
    in_force = entry["policy"]
    click.echo(f"{entry['model']}: {_describe(in_force)}")
    for change in in_force["stale"]:
        terms = "{backend} {field} was {old}, is {new}".format_map(change)
        click.echo(f"STALE: measured on other engines ({terms}); calibrate again")
    click.echo(f"on {entry['side']} for {entry['side_age_s']:.0f} s, {entry['switches']} switches so far")
    if (dry := entry.get("dry")) is not None:
        click.echo(_describe_dry(dry))
    figures = ["in_flight", "steering", "drift", "steady_drift"]
    for name, backend in entry["backends"].items():
        if backend["readings"].get("model_wrong"):
            click.echo(f"WRONG MODEL: {name} is not the engine that was measured; calibrate again")
        if backend["readings"]:
            readings = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in backend["readings"].items())
            click.echo(f"{name} beside its model: {readings}")
    counts = (Column(figure.replace("_", " "), justify="right") for figure in figures)
    table = Table("backend", "side", "ready", *counts, box=box.SIMPLE_HEAD)
    for name, backend in entry["backends"].items():
        side = next((key for key in ("low", "high") if in_force[key] == name), "")
        ready = "yes" if backend["ready"] else "NO"
        shown = (backend[figure] for figure in figures)
        table.add_row(name, side, ready, *("?" if count is None else str(count) for count in shown))
    Console().print(table)
