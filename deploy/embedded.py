"""The embedded stack: the reference engine behind Triton's wire and behind vLLM's. It needs nothing but Python.

In: a pace, or None. Out: a Stack. Starts nothing itself.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.ports import LOCALHOST, find_free, listens
from deploy.processes import Process
from deploy.stacks import WEIGHTS, Stack, backends
from engines.process import answers
from engines.reference.pairs import RECITED_CONTEXT, Lengths, Pair, Role, find_crossing, find_throughput, load_pairs

ROLES: Mapping[str, Role] = {"triton": "low", "vllm": "high"}  # of each backend
DEMO = "demo"  # the pair whose answers are computed
PAIRS = (DEMO, "tp-dp", "spec-plain")
PROMPT_TOKENS = 85  # of a prompt of `crossover calibrate --quick`, with the template's
MAX_LEVEL = 128  # of such a calibration
# An engine that reaches this share of its pace has held it. An idle machine reaches 0.98 and more. The demo's engines
# are so close together that 3 % less of one move the crossing by some 15 %.
HELD = 0.97
MOVE_S = 0.013  # of a move besides its prefill, at any time scale


@dataclass(frozen=True, slots=True)
class Pace:
    """Slow motion for the reference engine: a pair of engines/reference/pairs.json, `time_scale` times slower.

    `answer_tokens`: of the answers that a calibration asks for.
    """

    time_scale: float
    answer_tokens: int
    name: str = DEMO

    @property
    def pair(self) -> Pair:
        return load_pairs()[self.name]

    @property
    def crossing(self) -> float | None:
        """The number of requests in flight at which the pair crosses, the same at every time scale; None if nowhere."""
        engines = self.pair.engines
        return find_crossing(engines["low"], engines["high"], Lengths(PROMPT_TOKENS, self.answer_tokens))

    def throughput(self, backend: str, level: int) -> float:
        """Returns the tokens per second of the engine of `backend` with `level` in flight, if it holds this pace."""
        engine = self.pair.engines[ROLES[backend]].slowed(self.time_scale)
        return find_throughput(engine, level, Lengths(PROMPT_TOKENS, self.answer_tokens))

    def least_held(self, cells: Iterable[Mapping[str, Any]]) -> tuple[float, Mapping[str, Any]]:
        """Returns the smallest share of the pace that a calibration's cells reached, and the cell that reached it.

        Only levels up to the first beyond the crossing count: they decide where it lies.
        """
        last = 2 ** math.ceil(math.log2(self.crossing or MAX_LEVEL))
        shares = [(cell["throughput"] / self.throughput(cell["backend"], cell["level"]), cell) for cell in cells]
        return min((pair for pair in shares if pair[1]["level"] <= last), key=lambda pair: pair[0])

    def describe_node(self, prompt_tokens: int = PROMPT_TOKENS, *, is_shared: bool) -> dict[str, object]:
        """Returns the node model (docs/routing.md) of these engines, as JSON has it. `is_shared`: on the same GPUs."""
        low, high = (asdict(self.pair.engines[role].slowed(self.time_scale)) for role in ("low", "high"))
        interference = self.pair.interference if is_shared else 0.0
        lengths = {"prompt_tokens": prompt_tokens, "answer_tokens": self.answer_tokens}
        return {"low": low, "high": high, "interference": interference, "move_s": MOVE_S, **lengths}

    def options(self, backend: str) -> tuple[str, ...]:
        """Returns the options of the reference engine's command line that set this pace."""
        return ("--pace", f"{self.name}:{ROLES[backend]}", "--time-scale", f"{self.time_scale:g}")


def embedded(pace: Pace | None = None, gpus: Path | None = None, weights: Path = WEIGHTS) -> Stack:
    """Returns the reference engine behind both wires; without a pace it is as fast as this machine computes.

    `gpus`: a file that need not exist, by which paced engines slow each other down as on the same GPUs; None: each has
    GPUs of its own.
    """
    grpc, metrics, http = find_free(3)
    # Several processes share the cores: OpenBLAS's threads spin while they wait (docs/results/reference-engine.md).
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    triton = _serve("kserve", weights, "--grpc-port", str(grpc), "--metrics-port", str(metrics))
    vllm = _serve("vllm_http", weights, "--port", str(http))
    if pace:
        triton += pace.options("triton")
        vllm += pace.options("vllm")
    if pace and gpus:
        triton += ("--shared-gpus", str(gpus))
        vllm += ("--shared-gpus", str(gpus))
    return Stack(
        name="embedded",
        engines=(
            Process("triton", triton, lambda: listens(grpc), environment),
            Process("vllm", vllm, lambda: answers(f"http://{LOCALHOST}:{http}/health"), environment),
        ),
        backends=backends(grpc, metrics, http),
        startup_s=60.0,
        weights=weights,
        context_length=None if pace is None or pace.pair.computes else RECITED_CONTEXT,
    )


def _serve(wire: str, weights: Path, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"engines.reference.{wire}", "--model-dir", str(weights), *options)
