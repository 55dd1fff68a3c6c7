"""Command-line options of both servers of the reference engine, and the engine that they name.

In: parsed options. Out: what the wires need of it, and what runs its requests, which ends with the block.
"""

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from engines.process import CannotStart, prefer_latency
from engines.reference.checkpoint import Floats, load_checkpoint
from engines.reference.engine import Engine, EngineLoad
from engines.reference.guide import Grammars
from engines.reference.model import Model
from engines.reference.outlet import Outlet
from engines.reference.paced_outlet import PacedOutlet
from engines.reference.pacing import Pacer, SharedNode
from engines.reference.pairs import PAIRS, RECITED_CONTEXT, Pair, Role, load_pairs
from engines.reference.reciter import Reciter
from engines.reference.runner import Receiver, Runner
from engines.reference.sampling import SamplingParams
from engines.reference.shared_gpus import SharedGPUs

WEIGHTS = Path(__file__).with_name("weights")
ROLES: tuple[Role, ...] = ("low", "high")


class Runs(Protocol):
    """What runs requests: a Runner or a Reciter."""

    @property
    def is_alive(self) -> bool: ...

    @property
    def stats(self) -> EngineLoad: ...

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, receiver: Receiver) -> None: ...

    def cancel(self, request_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the engine can do. Without `computes` it has neither log-probabilities nor guides."""

    vocab_size: int
    context_length: int
    grammars: Grammars | None
    embed: Callable[[Sequence[int]], Floats]
    computes: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """One engine of a pair, and how many times slower it is."""

    pair: Pair
    role: Role
    time_scale: float


def add_options(parser: argparse.ArgumentParser, *, served_model_name: str) -> None:
    parser.add_argument("--model-dir", type=Path, default=WEIGHTS, help="config.json, *.safetensors, tokenizer.json")
    parser.add_argument("--served-model-name", default=served_model_name, help="default: %(default)s")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--max-batch", type=int, default=128, help="requests that are computed at once (default: %(default)s)"
    )
    parser.add_argument(
        "--pace", metavar="PAIR:ENGINE", help="be as fast as this engine, such as demo:low or tp-dp:high (default: off)"
    )
    parser.add_argument("--pairs", type=Path, default=PAIRS, metavar="FILE", help="where the pairs are (pairs.json)")
    parser.add_argument(
        "--time-scale", type=float, default=10.0, help="slow motion of that engine (default: %(default)s)"
    )
    parser.add_argument(
        "--no-compute",
        action="store_true",
        help="with --pace: recite ids that mean nothing, for which any machine is fast enough; some pairs always do",
    )
    parser.add_argument(
        "--shared-gpus",
        type=Path,
        metavar="FILE",
        help="with --pace: be as slow as beside the pair's other engine that names this file (default: own GPUs)",
    )


@contextlib.asynccontextmanager
async def run_engine(options: argparse.Namespace) -> AsyncIterator[tuple[Abilities, Runs]]:
    """Runs the engine of the options; tokens arrive on this event loop."""
    pace = read_pace(options)
    try:
        abilities, runs = make_engine(options, pace)
    except (OSError, ValueError) as exc:
        raise CannotStart(f"cannot load the model: {exc}") from exc
    prefer_latency()
    runs.start()
    try:
        yield abilities, runs
    finally:
        runs.close()


def read_pace(options: argparse.Namespace) -> Pace | None:
    """Raises CannotStart for a pace that is not in the file, and for options that need one."""
    if options.pace is None:
        if options.no_compute or options.shared_gpus is not None:
            raise CannotStart("--no-compute and --shared-gpus need --pace")
        return None
    try:
        pairs = load_pairs(options.pairs)
    except (OSError, ValueError) as exc:
        raise CannotStart(f"cannot read the pairs: {exc}") from exc
    engines = {f"{name}:{role}": Pace(pair, role, options.time_scale) for name, pair in pairs.items() for role in ROLES}
    if options.pace not in engines:
        raise CannotStart(f"--pace {options.pace}: {options.pairs} has {', '.join(engines)}")
    pace = engines[options.pace]
    return replace(pace, pair=replace(pace.pair, computes=pace.pair.computes and not options.no_compute))


def make_engine(options: argparse.Namespace, pace: Pace | None) -> tuple[Abilities, Runner | Reciter]:
    checkpoint = load_checkpoint(options.model_dir)
    config = checkpoint.config
    if pace is not None and not pace.pair.computes:
        abilities = Abilities(config.vocab_size, RECITED_CONTEXT, None, Model(checkpoint).embed, computes=False)
        words = find_words(options.model_dir)
        return abilities, Reciter(make_pacer(pace, options.shared_gpus), words, RECITED_CONTEXT)
    grammars = Grammars(options.model_dir, config.vocab_size)
    engine = Engine(checkpoint, max_batch=options.max_batch, grammars=grammars)
    outlet = Outlet() if pace is None else PacedOutlet(make_pacer(pace, options.shared_gpus))
    abilities = Abilities(config.vocab_size, config.context_length, grammars, engine.model.embed)
    return abilities, Runner(engine, asyncio.get_running_loop().call_soon_threadsafe, outlet)


def make_pacer(pace: Pace, shared_gpus: Path | None) -> Pacer:
    shared = None
    if shared_gpus is not None:
        shared = SharedNode(SharedGPUs(shared_gpus, ROLES.index(pace.role)), pace.pair.interference)
    model = pace.pair.engines[pace.role].slowed(pace.time_scale)
    return Pacer(model, shared, caches_prefixes=pace.pair.prefix_cache)


def find_words(directory: Path) -> list[int]:
    """Returns the ids of the tokenizer's plain words, so that each is text of its own and none is special.

    Raises ValueError if it has none.
    """
    vocabulary: dict[str, int] = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    words = [token_id for token, token_id in vocabulary.items() if is_word(token.removeprefix("\u0120"))]
    if not words:
        raise ValueError(f"{directory / 'tokenizer.json'} has no tokens that are plain words")
    return sorted(words)


def is_word(text: str) -> bool:
    return text.isascii() and text.isalpha()
