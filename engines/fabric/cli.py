"""`crossover fabric`: options in; tables, fabric.json, fabric.md and an exit code out."""

import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import click

from engines.fabric.curve import Curve
from engines.fabric.datasheet import DataSheet, find_data_sheet
from engines.fabric.findings import WAYS, Findings, Machine, Measured
from engines.fabric.forecast import Node, forecast
from engines.fabric.measure import FabricError, Group, WrongSum, describe_machine, measure
from engines.fabric.model import Model, read_model
from engines.fabric.report import list_sections
from engines.sections import render_markdown, render_text

USUAL_DEGREES = (2, 4, 8)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SIZE = re.compile(r"(\d+)([kmg]?)(?:i?b)?", re.IGNORECASE)
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    gpus: tuple[int, ...] | None
    degrees: tuple[int, ...] | None
    backend: str
    python: str
    model: Path | None
    weights_gb: float | None
    weight_bits: int | None
    link_gb_s: float | None
    memory_gb_s: float | None
    tflops: float | None
    min_size: int
    max_size: int
    repeats: int
    as_json: bool
    out: Path | None

    @property
    def sizes(self) -> list[int]:
        sizes = [self.min_size]
        while sizes[-1] * 2 <= self.max_size:
            sizes.append(sizes[-1] * 2)
        return sizes


def _parse_numbers(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(map(int, text.split(",")))
    except ValueError as exc:
        raise click.BadParameter("whole numbers with commas between them, like 0,1") from exc
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise click.BadParameter("each once, and none below 0")
    return numbers


def _parse_size(_ctx: click.Context, _param: click.Parameter, text: str) -> int:
    found = SIZE.fullmatch(text.strip())
    size = int(found[1]) * UNITS[found[2].lower()] if found else 0
    if size < 4 or size % 4:
        raise click.BadParameter("a size in bytes, KiB, MiB or GiB that 4 divides, like 1k or 1G")
    return size


POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(context_settings={"show_default": True})
@click.option("--gpus", callback=_parse_numbers, help="Indices of the GPUs, like 0,1.  [default: all]")
@click.option(
    "--tp",
    "degrees",
    callback=_parse_numbers,
    help="How many GPUs share a sum.  [default: of 2,4,8 those that there are]",
)
@click.option(
    "--backend",
    type=click.Choice(("nccl", "gloo")),
    default="nccl",
    help="nccl: GPUs, as engines use it. gloo: processes on this CPU, to try the command out.",
)
@click.option(
    "--python",
    default=sys.executable,
    show_default=False,
    help="A Python that has torch.  [default: the one that runs this]",
)
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    help="A checkpoint's directory or its config.json: what the sums mean for it.",
)
@click.option("--weights-gb", type=POSITIVE, help="What one step of the model reads, where its files do not show it.")
@click.option("--weight-bits", type=click.IntRange(1, 32), help="Of an engine that quantizes the model.")
@click.option("--link-gb-s", type=POSITIVE, help="The link's bandwidth in one direction.  [default: by the GPU's name]")
@click.option("--memory-gb-s", type=POSITIVE, help="Of one GPU's memory.  [default: by the GPU's name]")
@click.option("--tflops", type=POSITIVE, help="Of one GPU, dense, for the model's precision.  [default: by its name]")
@click.option("--least", "min_size", default="1k", callback=_parse_size, help="Smallest message.")
@click.option("--most", "max_size", default="1G", callback=_parse_size, help="Largest message.")
@click.option("--repeats", type=click.IntRange(1), default=7, help="Timed loops of every size.")
@click.option("--json", "as_json", is_flag=True, help="Print fabric.json on stdout instead of tables.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Write fabric.json and fabric.md here.")
def fabric(**values: Any) -> None:  # Any: click's; Options gives the types
    """Measure all-reduces between GPUs, and find which tensor parallelism suits a model.

    Times an all-reduce over message sizes as engines call it, between as many processes as GPUs share a model. With
    --model: what that costs in every step of prefill and decode, beside reading the weights.

    \b
    Examples:
      crossover fabric
      crossover fabric --gpus 0,1 --tp 2 --model /models/llama-3.1-8b --out runs/fabric
      crossover fabric --python /opt/vllm/bin/python --model /models/llama-3.1-70b/config.json --json
      crossover fabric --backend gloo --tp 2 --most 1M

    Exit codes: 0 measured; 1 an all-reduce gave a wrong sum; 2 bad arguments, no torch, no GPUs, or they do not reach
    each other; 130 interrupted.
    """
    options = Options(**values)
    if options.max_size < options.min_size:
        raise click.UsageError("--most: below --least")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        findings = _find(options)
        if options.out:
            _write(findings, options.out)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except FabricError as exc:
        click.echo(f"Error: {exc}", err=True)
        raise SystemExit(1 if isinstance(exc, WrongSum) else 2) from None
    click.echo(json.dumps(findings.to_json(), indent=2) if options.as_json else render_text(list_sections(findings)))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the command and its ranks as Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def _find(options: Options) -> Findings:
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine(options.python)
    devices = _choose_devices(options, machine)
    degrees = _choose_degrees(options, devices)
    name = machine.gpus[devices[0]].name if devices else "CPU"
    sheet = find_data_sheet(name).overridden(options.link_gb_s, options.memory_gb_s, options.tflops)
    model = _read_model(options, sheet, name)
    measured = [_measure(options, tp, devices) for tp in degrees]
    node = _make_node(machine, sheet, devices, measured)
    return Findings(
        started_at=started_at,
        backend=options.backend,
        device=name,
        machine=machine,
        sheet=sheet,
        measured=measured,
        forecast=forecast(model, node) if model else None,
    )


def _choose_devices(options: Options, machine: Machine) -> tuple[int, ...]:
    """Returns the indices of the GPUs, none on CPUs. Raises FabricError if a GPU is missing, or they are not alike."""
    if options.backend == "gloo":
        if options.gpus is not None:
            raise click.UsageError("--gpus: gloo is measured on this CPU")
        return ()
    there = len(machine.gpus)
    chosen = options.gpus or tuple(range(there))
    if there < 2 or len(chosen) < 2:
        raise FabricError(f"it takes two GPUs, and torch sees {there} (--backend gloo tries the command on a CPU)")
    if max(chosen) >= there:
        raise FabricError(f"--gpus: there is no GPU {max(chosen)}, torch sees {there}")
    names = sorted({machine.gpus[index].name for index in chosen})
    if len(names) > 1:
        raise FabricError(f"the GPUs are not alike ({' and '.join(names)}): choose some with --gpus")
    return chosen


def _choose_degrees(options: Options, devices: Sequence[int]) -> list[int]:
    degrees = sorted(options.degrees or [tp for tp in USUAL_DEGREES if tp <= max(2, len(devices))])
    if degrees[0] < 2:
        raise click.UsageError("--tp: a sum is shared by at least two")
    if devices and degrees[-1] > len(devices):
        raise FabricError(f"--tp {degrees[-1]} takes as many GPUs, and there are {len(devices)}")
    return degrees


def _read_model(options: Options, sheet: DataSheet, name: str) -> Model | None:
    """Reads the model before anything is measured, so that a missing option ends the command at once."""
    if options.model is None:
        return None
    if sheet.memory is None:
        raise FabricError(f"the memory bandwidth of {name} is not known here: give it with --memory-gb-s")
    try:
        return read_model(options.model, options.weights_gb, options.weight_bits)
    except ValueError as exc:
        raise FabricError(f"--model: {exc}") from exc


def _measure(options: Options, tp: int, devices: Sequence[int]) -> Measured:
    chosen = devices[:tp]
    group = Group(
        python=options.python,
        backend=options.backend,
        devices=chosen or [None] * tp,
        sizes=options.sizes,
        ways=WAYS if chosen else ("eager",),
        repeats=options.repeats,
    )
    label = f"TP {tp}: {group.samples} timed loops"
    with click.progressbar(measure(group), group.samples, label, file=sys.stderr) as bar:
        samples = list(bar)
    return Measured(tp, chosen, {way: Curve.of(tp, way, samples) for way in group.ways})


def _make_node(machine: Machine, sheet: DataSheet, devices: Sequence[int], measured: Sequence[Measured]) -> Node:
    """Makes a node with as many GPUs as the highest degree takes. Engines prefill eagerly, and decode from graphs."""
    return Node(
        gpus=max(each.tp for each in measured),
        sheet=sheet,
        memory_bytes=machine.gpus[devices[0]].memory_bytes if devices else None,
        decode={each.tp: each.main for each in measured},
        prefill={each.tp: each.curves["eager"] for each in measured},
    )


def _write(findings: Findings, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "fabric.json").write_text(json.dumps(findings.to_json(), indent=2) + "\n")
        (out / "fabric.md").write_text(render_markdown(list_sections(findings)))
    except OSError as exc:
        raise FabricError(f"cannot write to {out}: {exc.strerror}") from exc
