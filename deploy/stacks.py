"""A stack: two engines with the same weights, and the gateway before them, with its crossover.yaml and its process.

embedded.py and cpu.py make one. Starts nothing itself.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.ports import LOCALHOST
from deploy.probes import sees_every_backend
from deploy.processes import Process

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "engines/reference/weights"
MODEL = "crossover-mini"
GATEWAY = "gateway"
RELAY_PATHS = ("/v1/embeddings", "/v1/rerank", "/v1/score")  # what an engine may answer beside generations
# A first guess for the measured pair; a calibration replaces it.
FIRST_POLICY: Mapping[str, object] = {"kind": "threshold", "low": "triton", "high": "vllm", "up": 48, "down": 40}


@dataclass(frozen=True, slots=True)
class Stack:
    """Two engines with the same `weights`. `backends` is that part of crossover.yaml; `startup_s` bounds the start.

    `context_length`: of engines that have another one than the model of `weights`.
    """

    name: str
    engines: tuple[Process, ...]
    backends: Mapping[str, Mapping[str, object]]
    startup_s: float
    weights: Path = WEIGHTS
    context_length: int | None = None

    @property
    def process_names(self) -> list[str]:
        """The names of the engines and of the gateway."""
        return [*(engine.name for engine in self.engines), GATEWAY]

    def configuration(self, port: int) -> str:
        """Returns the crossover.yaml of a gateway that listens on `port` of this machine."""
        model = {
            "id": MODEL,
            "tokenizer": str(self.weights),
            "backends": {name: dict(backend) for name, backend in self.backends.items()},
            "policy": dict(FIRST_POLICY),
            "relay_paths": list(RELAY_PATHS),
        }
        return yaml.safe_dump({"listen": f"{LOCALHOST}:{port}", "models": [model]}, sort_keys=False)


def copy_tokenizer(weights: Path, folder: Path, context_length: int) -> Path:
    """Copies what the gateway reads of a model to `folder`, with another context length.

    Returns the folder, absolute: paths in crossover.yaml are relative to that file.
    """
    folder.mkdir(exist_ok=True)
    lengths = {"config.json": "max_position_embeddings", "tokenizer_config.json": "model_max_length"}
    for file in weights.iterdir():
        if file.suffix == ".safetensors":
            continue
        text = file.read_text()
        if (key := lengths.get(file.name)) is not None:
            text = json.dumps(json.loads(text) | {key: context_length})
        (folder / file.name).write_text(text)
    return folder.resolve()


def gateway(configuration: Path, port: int) -> Process:
    """Returns the process of the gateway in front of a stack; it is ready once it finds both engines ready."""
    command = (crossover_script(), "serve", "-c", str(configuration))
    # Set for some other gateway on this machine, these would override crossover.yaml; empty means unset.
    environment = {"CROSSOVER_LISTEN": "", "CROSSOVER_OPERATOR_KEY": ""}
    return Process(GATEWAY, command, lambda: sees_every_backend(f"http://{LOCALHOST}:{port}"), environment)


def crossover_script() -> str:
    """Returns the path of the command `crossover` in the environment that this process runs in."""
    return str(Path(sys.executable).with_name("crossover"))


def backends(grpc: int, metrics: int, http: int, connect_timeout_s: float = 2.0) -> dict[str, dict[str, object]]:
    metrics_url = f"http://{LOCALHOST}:{metrics}/metrics"
    patience: dict[str, object] = {"connect_timeout_s": connect_timeout_s}
    return {
        "triton": {"kind": "triton", "url": f"grpc://{LOCALHOST}:{grpc}", "metrics_url": metrics_url} | patience,
        "vllm": {"kind": "vllm", "url": f"http://{LOCALHOST}:{http}"} | patience,
    }
