"""--gpu-price and --gpu-count, as every command that reports tokens has them."""

from collections.abc import Mapping

import click

from loadtest.cost import Cost, Price, complete, parse_gpus
from loadtest.hardware import Declared


def parse_price(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Price | None:
    try:
        return Price.parse(text) if text is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _parse_gpus(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Mapping[str, int] | None:
    try:
        return parse_gpus(text) if text is not None else None
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


gpu_price = click.option(
    "--gpu-price",
    callback=parse_price,
    metavar="AMOUNT",
    help="Of one GPU for one hour, like 2.50 or '2.50 EUR': reports then tell money per million tokens.",
)
gpu_count = click.option(
    "--gpu-count",
    callback=_parse_gpus,
    metavar="N",
    help="GPUs of every backend, or of each, like triton=2,vllm=4: reports then tell tokens per GPU-hour.",
)


def make_cost(price: Price | None, gpus: Mapping[str, int] | None, hardware: Declared | None = None) -> Cost | None:
    """None where nothing was told. Raises UsageError for a price of nobody knows how many GPUs."""
    if price is None and gpus is None:
        return None
    cost = Cost(gpus=gpus or {}, price=price)
    if not complete(cost, hardware).gpus:
        raise click.UsageError("--gpu-price: how many GPUs it is for is told by --gpu-count, or by gpus in --hardware")
    return cost
