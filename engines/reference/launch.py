"""Command-line options of both servers of the reference engine, and the engine on its threads.

In: parsed options. Out: an engine and its runner, which end with the block.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from engines.process import CannotStart, prefer_latency
from engines.reference.checkpoint import load_checkpoint
from engines.reference.curve import MEASURED_TOKENS, load_curve
from engines.reference.engine import Engine
from engines.reference.guide import Grammars
from engines.reference.outlet import Outlet, PacedOutlet
from engines.reference.pacing import Pacer
from engines.reference.runner import Runner
from engines.reference.shared_gpus import SharedGPUs

WEIGHTS = Path(__file__).with_name("weights")
MEASURED = ("trtllm", "vllm")


def add_options(parser: argparse.ArgumentParser, *, served_model_name: str) -> None:
    parser.add_argument("--model-dir", type=Path, default=WEIGHTS, help="config.json, *.safetensors, tokenizer.json")
    parser.add_argument("--served-model-name", default=served_model_name, help="default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--max-batch", type=int, default=128, help="requests in the engine at once (default: %(default)s)"
    )
    parser.add_argument("--curve", choices=MEASURED, help="pace answers by this measured curve (default: off)")
    parser.add_argument(
        "--time-scale", type=float, default=10.0, help="slow motion of the curve (default: %(default)s)"
    )
    parser.add_argument(
        "--answer-tokens",
        type=int,
        default=MEASURED_TOKENS,
        help="typical answer; the curve's time to first token shrinks by this / 256 (default: %(default)s)",
    )
    parser.add_argument(
        "--shared-gpus",
        type=Path,
        metavar="FILE",
        help="with --curve: be as slow as beside the other engines that name this file (default: GPUs of its own)",
    )
    parser.add_argument("--seat", type=int, default=0, help="this engine's number among those (default: %(default)s)")


@contextlib.asynccontextmanager
async def run_engine(options: argparse.Namespace) -> AsyncIterator[tuple[Engine, Runner]]:
    """Runs the engine of the options on its threads; tokens arrive on this event loop."""
    try:
        checkpoint = load_checkpoint(options.model_dir)
        grammars = Grammars(options.model_dir, checkpoint.config.vocab_size)
        engine = Engine(checkpoint, max_batch=options.max_batch, grammars=grammars)
        outlet = make_outlet(options)
    except (OSError, ValueError) as exc:
        raise CannotStart(f"cannot load the model: {exc}") from exc
    runner = Runner(engine, asyncio.get_running_loop().call_soon_threadsafe, outlet)
    prefer_latency()
    runner.start()
    try:
        yield engine, runner
    finally:
        runner.close()


def make_outlet(options: argparse.Namespace) -> Outlet:
    if options.curve is None:
        return Outlet()
    curve = load_curve(options.curve).scaled(options.time_scale, options.answer_tokens)
    neighbours = None if options.shared_gpus is None else SharedGPUs(options.shared_gpus, options.seat)
    return PacedOutlet(Pacer(curve, options.max_batch, neighbours))
