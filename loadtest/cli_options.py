"""Options that several commands have, and how option texts become values."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
import orjson

from loadtest.client.target import Target
from loadtest.decide.cost import Price, parse_gpus
from loadtest.results.system import Json

T = TypeVar("T")


def parsed_by(parse: Callable[[T], object]) -> Callable[[click.Context, click.Parameter, T | None], object]:
    """Returns a callback that calls `parse` on the given value, if any, and makes a usage error of its ValueError."""

    def callback(_context: click.Context, _parameter: click.Parameter, given: T | None) -> object:
        try:
            return parse(given) if given else None
        except ValueError as exc:
            raise click.BadParameter(str(exc)) from exc

    return callback


def parse_target(_context: click.Context, _parameter: click.Parameter, url: str) -> Target:
    try:
        return Target.parse(url)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def is_given(context: click.Context, name: str) -> bool:
    """Whether the parameter was set on the command line."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


gpu_price = click.option(
    "--gpu-price",
    callback=parsed_by(Price.parse),
    metavar="AMOUNT",
    help="Of one GPU for one hour, like 2.50 or '2.50 EUR': reports then show money per million tokens.",
)
gpu_count = click.option(
    "--gpu-count",
    callback=parsed_by(parse_gpus),
    metavar="N",
    help="GPUs of every backend, or of each, like triton=2,vllm=4: reports then show tokens per GPU-hour.",
)


def read_node(file: Path) -> Json:
    """Reads a node model's JSON, or that in a calibration's result. Raises ValueError."""
    try:
        content = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as exc:
        raise ValueError(f"--node: {file}: {exc}") from exc
    node = content.get("node", content) if isinstance(content, dict) else None
    if isinstance(node, dict) and {"low", "high"} <= node.keys():
        return node
    raise ValueError(f"--node: {file} holds no node model")
