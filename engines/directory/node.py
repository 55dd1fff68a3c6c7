"""Facts of the node that an engine is to run on: its GPUs, by nvidia-smi, and the packages of its Python.

In: a place where commands run. Out: NodeFacts, None for what is unknown. Knows no engine.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from engines.trtllm.steps import Place

GPU_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
# TensorRT's builds have different names (tensorrt, tensorrt-cu13), so all distributions are listed.
PROBE = (
    "import importlib.metadata as m, json; "
    "print(json.dumps({str(d.metadata['Name']).lower().replace('-', '_'): d.version for d in m.distributions()}))"
)
TENSORRT_NAMES = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
TIMEOUT_S = 120.0  # a container's first start, its image at hand


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`capability` and `gpu_name` are None where the GPUs differ."""

    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    capability: str | None = None
    gpu_name: str | None = None
    gpu_count: int | None = None
    driver: str | None = None


def detect(place: Place) -> NodeFacts:
    """Asks nvidia-smi here and Python at the place."""
    versions = read_versions(_ask(place.wrap(("python3", "-c", PROBE))))
    gpus = read_gpus(_ask(GPU_QUERY))
    return NodeFacts(
        tensorrt_llm=versions.get("tensorrt_llm"),
        tensorrt=next((versions[name] for name in TENSORRT_NAMES if name in versions), None),
        capability=_same([capability for _, capability, _ in gpus]),
        gpu_name=_same([name for name, _, _ in gpus]),
        gpu_count=len(gpus) or None,
        driver=_same([driver for _, _, driver in gpus]),
    )


def read_versions(output: str) -> Mapping[str, str]:
    """Reads the packages' versions from the probe's output; an image prints its banner before it."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return {str(name): str(version) for name, version in answer.items()} if isinstance(answer, dict) else {}


def read_gpus(output: str) -> list[tuple[str, str, str]]:
    """Returns (name, compute capability, driver) of every GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def _ask(argv: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _same(values: list[str]) -> str | None:
    return values[0] if len(set(values)) == 1 else None
