"""`crossover doctor`: examines the engines and the node of a configuration, and prints what is wrong and its cure.

In: a configuration file, and logs if there are any. Out: findings on stdout and an exit code. Knows no rule.
"""

import asyncio
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from gateway.commands.config import CONFIG
from gateway.commands.options import read_settings
from gateway.doctor import FEATURES, Options, Report, Topic, examine, render_json, render_text
from gateway.engine_kinds import ENGINE_KINDS
from gateway.settings import Settings


def _split_pairs(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> list[tuple[str, str]]:
    for value in values:
        if not re.fullmatch("[^=]+=.+", value):
            raise click.BadParameter(f"{value!r} must begin with a backend's name and =")
    return [(name, rest) for name, _, rest in (value.partition("=") for value in values)]


@click.command()
@CONFIG
@click.option(
    "--log", "logs", metavar="BACKEND=FILE", multiple=True, callback=_split_pairs, help="An engine's log; repeatable."
)
@click.option(
    "--require",
    "required",
    metavar="BACKEND=FEATURE,...",
    multiple=True,
    callback=_split_pairs,
    help=f"Features that have to be proved to be on: {', '.join(FEATURES)}; repeatable.",
)
@click.option(
    "--generate/--no-generate", "generates", default=True, help="Send each engine a few short requests, or none."
)
@click.option(
    "-v", "--verbose", "form", flag_value="verbose", help="Also print what is known of each engine, and the source."
)
@click.option("--json", "form", flag_value="json", help="Print everything as one JSON document.")
def doctor(
    config: Path | None,
    logs: Sequence[tuple[str, str]],
    required: Sequence[tuple[str, str]],
    generates: bool,
    form: str | None,
) -> None:
    """Check whether the features that the engines are credited with are on, and whether the node fits together.

    Every finding has what was seen, what it means and its cure; where all is well nothing is printed. Features
    are read from the engines' configuration, metrics pages, command lines and logs, and from the order of a few short
    answers. A feature that no source mentions is unknown and no finding, unless --require names it.

    It sees most on the node itself, run by a user who may look at the engines' processes.

    \b
    Examples:
      crossover doctor -c crossover.yaml
      crossover doctor -c crossover.yaml --log vllm=vllm.log --require vllm=cuda_graphs,fp8

    Exit codes: 0 nothing found; 1 findings; 2 bad arguments or configuration, or no engine answers at all.
    """
    settings = read_settings("doctor", config)
    options = Options(_check_logs(settings, logs), _check_features(settings, required), generates)
    report = _examine(settings, options)
    if form == "json":
        click.echo(render_json(report))
    elif text := render_text(report, is_verbose=form == "verbose"):
        click.echo(text)
    sys.exit(2 if report.is_blind else 1 if report.findings else 0)


def _examine(settings: Settings, options: Options) -> Report:
    logging.basicConfig(level=logging.ERROR)  # findings say better what adapters warn of
    console = Console(stderr=True)
    with console.status("looking") as status:  # shown on a terminal only
        return asyncio.run(examine(settings, options, ENGINE_KINDS, lambda what: status.update(f"looking at {what}")))


def _check_logs(settings: Settings, logs: Sequence[tuple[str, str]]) -> Mapping[str, Path]:
    for name, path in logs:
        _check_backend(settings, name, "--log")
        if not Path(path).is_file():
            raise click.BadParameter(f"{path} is no file", param_hint="--log")
    return {name: Path(path) for name, path in logs}


def _check_features(settings: Settings, required: Sequence[tuple[str, str]]) -> Mapping[str, frozenset[Topic]]:
    features: dict[str, frozenset[Topic]] = {}
    for name, words in required:
        _check_backend(settings, name, "--require")
        for word in words.split(","):
            if word not in FEATURES:
                raise click.BadParameter(f"{word!r} is none of {', '.join(FEATURES)}", param_hint="--require")
            features[name] = features.get(name, frozenset()) | {Topic(word)}
    return features


def _check_backend(settings: Settings, name: str, option: str) -> None:
    names = {backend for model in settings.models for backend in model.backends}
    if name not in names:
        raise click.BadParameter(f"no backend is called {name!r} ({', '.join(sorted(names))} are)", param_hint=option)
