"""Compares the token lane to a real Triton server with `tritonclient.grpc.aio` on the same streams in the same run.

The server is started by `python -m engines.triton` with a model of ours that sends stamped tokens (stamped/model.py).
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson

from loadtest.lab.bench.gateways import Found, Gateway, GatewayLauncher
from loadtest.lab.bench.load_client import Destination, run_client
from loadtest.lab.bench.systems import Site, System, launch_crossover
from loadtest.lab.figures.measurement import Record
from loadtest.lab.figures.scenarios import GRPC_ALONE, TRITON, TRITON_LANE, Load, rotate
from loadtest.mock_engine.engine import IdSpace
from loadtest.mock_engine.http import fetch, free_ports
from loadtest.mock_engine.process import Child, Launch, pinned_to, wait_until_quiet, wait_until_ready

ROOT = Path(__file__).resolve().parents[3]
SERVER = ROOT / ".stacks/triton"
STAMPED_MODEL = Path(__file__).parent / "stamped/model.py"
START_TIMEOUT_S = 90.0
STOP_GRACE_S = 15.0


def find_complaint() -> str | None:
    """Returns why Triton cannot be measured here; None if it can."""
    if not SERVER.exists():
        return f"{TRITON.name} is left out: no Triton server; to have it: make stacks"
    return None


def _launch(site: Site) -> Launch:
    backends = {"triton": {"kind": "triton", "url": site.engine}}
    return launch_crossover(site, {"tokenizer": str(site.tokenizer), "backends": backends})


GATEWAY = System(TRITON_LANE, "crossover", "make install", _launch, wire="ids")


@contextmanager
def serving(folder: Path, ids: IdSpace, cpus: tuple[int, ...]) -> Iterator[tuple[Child, int]]:
    """Starts a Triton with the paced model, ready in the block; yields it and its gRPC port. Raises CannotMeasure."""
    repository = write_repository(folder / "models", ids)
    grpc, http, metrics = free_ports(3)
    ports = {"grpc": grpc, "http": http, "metrics": metrics}
    argv = [sys.executable, "-m", "engines.triton", "--venv", str(SERVER), "--model-repository", str(repository)]
    argv += [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
    with Child(Launch(argv, cwd=ROOT), folder / "triton.log", cpus, STOP_GRACE_S) as child:
        probe = partial(fetch, f"http://127.0.0.1:{http}/v2/models/tensorrt_llm/ready")
        wait_until_ready("Triton", child, probe, START_TIMEOUT_S)
        yield child, grpc


def write_repository(folder: Path, ids: IdSpace) -> Path:
    """Writes a model repository: the tensors of the project's own model, with the stamped model behind them."""
    version = folder / "tensorrt_llm/1"
    version.mkdir(parents=True)
    shutil.copy(ROOT / "model_repo/python/tensorrt_llm/config.pbtxt", version.parent)
    shutil.copy(STAMPED_MODEL, version)
    values = {"first_time": ids.first_time, "first_place": ids.first_place}
    values |= {"interval_us": TRITON.pace.interval_us, "groups": TRITON.pace.groups}
    (version / "stamps.json").write_text(json.dumps(values))
    return folder


@dataclass(frozen=True, slots=True)
class TritonBench:
    """Measures token lane and gRPC client. `launcher`: its engine is not used; Triton is the engine here."""

    launcher: GatewayLauncher
    client: Path
    ids: IdSpace
    load: Load = TRITON.load

    def run(self, found: Found, repeats: int) -> Iterator[Record]:
        """Measures both in turns. Raises CannotMeasure if Triton or the gateway does not start."""
        folder = self.launcher.folder / TRITON.name
        folder.mkdir(parents=True)
        with (
            serving(folder, self.ids, self.launcher.cpus.engine) as (server, port),
            replace(self.launcher, engine_url=f"grpc://127.0.0.1:{port}").running(found) as gateway,
        ):
            for repeat in range(repeats):
                for system in rotate(TRITON.systems, repeat):
                    if system == TRITON_LANE:
                        yield self._measure_lane(gateway, server, repeat)
                    else:
                        yield self._measure_alone(port, repeat)
                    if gateway.child:
                        wait_until_quiet(gateway.child)

    def _measure_lane(self, gateway: Gateway, server: Child, repeat: int) -> Record:
        cpus = self.launcher.cpus
        destination = Destination(gateway.port, "ids", pids=gateway.pids, mock_pids=server.pids(), cpus=cpus.all)
        measured = run_client(self.client, destination, self.load, cpus.engine)
        return Record(TRITON.name, TRITON_LANE, repeat, measured.complaint, measured)

    def _measure_alone(self, port: int, repeat: int) -> Record:
        """Measures the gRPC client alone, on the gateway's CPU."""
        load = self.load
        times = {"ramp": load.ramp_s, "warm": load.warm_s, "window": load.window_s}
        options = {"target": f"127.0.0.1:{port}", "streams": load.streams, "tokens": load.tokens, **times}
        argv = [*pinned_to(self.launcher.cpus.gateway), sys.executable, "-m", "loadtest.lab.bench.grpc_aio"]
        argv.append(json.dumps(options))
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, timeout=load.longest_s + 60)
        if done.returncode:
            return Record(TRITON.name, GRPC_ALONE, repeat, done.stderr.decode()[-500:] or "failed")
        found: dict[str, float] = orjson.loads(done.stdout)
        tokens, window_s = found["tokens"], found["window_s"]
        extra = {"cpu_us_per_token": found["cpu_s"] * 1e6 / tokens, "tokens_per_s": tokens / window_s}
        return Record(TRITON.name, GRPC_ALONE, repeat, None, extra=extra)
