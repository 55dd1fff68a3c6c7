"""The token lane to a real Triton server, beside `tritonclient.grpc.aio` receiving the same tokens in the same run.

The server is started by `python -m engines.triton` with a model of ours that sends stamped tokens (stamped/model.py).
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml

from loadtest.bench.client import Load, Subject, run_client
from loadtest.bench.errors import BenchError
from loadtest.bench.gateways import Found, Gateway, Hall
from loadtest.bench.http import fetch, free_ports
from loadtest.bench.mock import MODEL, IdSpace
from loadtest.bench.processes import Child, Launch, pinned_to, wait_until_quiet
from loadtest.bench.record import Record
from loadtest.bench.runner import rotate
from loadtest.bench.scenarios import GRPC_ALONE, TRITON, TRITON_LANE
from loadtest.bench.systems import Site, System

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / ".stacks/triton"
HERE = Path(__file__).parent
START_TIMEOUT_S = 90.0
STOP_GRACE_S = 15.0


def find_complaint() -> str | None:
    """Why it cannot be measured here; None if it can."""
    if not SERVER.exists():
        return f"{TRITON.name} is left out: no Triton server; to have it: make stacks"
    return None


def _launch(site: Site) -> Launch:
    backend = {"kind": "triton", "url": site.engine}
    model = {"id": MODEL, "tokenizer": str(site.tokenizer), "backends": {"triton": backend}}
    config = {"listen": f"127.0.0.1:{site.port}", "models": [model]}
    path = site.write("crossover.yaml", yaml.safe_dump(config, sort_keys=False))
    return Launch([str(site.program), "serve", "-c", str(path)])


GATEWAY = System(TRITON_LANE, "crossover", "make install", _launch, wire="ids")


@dataclass(frozen=True, slots=True)
class Server:
    grpc: int
    child: Child

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc}"


@contextmanager
def serving(folder: Path, ids: IdSpace, cpus: tuple[int, ...]) -> Iterator[Server]:
    """A Triton with the paced model, ready within the block. Raises BenchError."""
    repository = write_repository(folder / "models", ids)
    grpc, http, metrics = free_ports(3)
    ports = {"grpc": grpc, "http": http, "metrics": metrics}
    argv = [sys.executable, "-m", "engines.triton", "--venv", str(SERVER), "--model-repository", str(repository)]
    argv += [text for door, port in ports.items() for text in (f"--{door}-port", str(port))]
    with Child(Launch(argv, cwd=ROOT), folder / "triton.log", cpus, STOP_GRACE_S) as child:
        _wait(child, f"http://127.0.0.1:{http}/v2/models/tensorrt_llm/ready")
        yield Server(grpc, child)


def write_repository(folder: Path, ids: IdSpace) -> Path:
    """The product's own tensors, another model behind them."""
    version = folder / "tensorrt_llm/1"
    version.mkdir(parents=True)
    shutil.copy(ROOT / "model_repo/python/tensorrt_llm/config.pbtxt", version.parent)
    shutil.copy(HERE / "stamped/model.py", version)
    values = {"first_time": ids.first_time, "first_place": ids.first_place}
    values |= {"interval_us": TRITON.pace.interval_us, "groups": TRITON.pace.groups}
    (version / "stamps.json").write_text(json.dumps(values))
    return folder


def _wait(child: Child, url: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at:
        if child.exit_code is not None:
            raise BenchError(f"Triton ended with exit code {child.exit_code}: {child.last_words()}")
        try:
            fetch(url)
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise BenchError(f"Triton was not ready in {START_TIMEOUT_S:g} s: {child.last_words()}")


@dataclass(frozen=True, slots=True)
class TritonBench:
    """`hall`: its engine is not used, for Triton is the engine here."""

    hall: Hall
    client: Path
    ids: IdSpace
    load: Load = TRITON.load

    def run(self, found: Found, repeats: int) -> Iterator[Record]:
        """Both in turns. Raises BenchError if Triton or the gateway does not start."""
        folder = self.hall.folder / TRITON.name
        folder.mkdir(parents=True)
        with (
            serving(folder, self.ids, self.hall.seats.engine) as server,
            self.hall.at(f"grpc://{server.target}", server.grpc).running(found) as gateway,
        ):
            for repeat in range(repeats):
                for system in rotate(TRITON.systems, repeat):
                    if system == TRITON_LANE:
                        yield self._lane(gateway, server, repeat)
                    else:
                        yield self._alone(server.target, repeat)
                    if gateway.child:
                        wait_until_quiet(gateway.child)

    def _lane(self, gateway: Gateway, server: Server, repeat: int) -> Record:
        subject = Subject(
            gateway.port, "ids", pids=gateway.pids, mock_pids=server.child.pids(), cpus=self.hall.seats.all
        )
        measured = run_client(self.client, subject, self.load, self.hall.seats.engine)
        return Record(TRITON.name, TRITON_LANE, repeat, measured.complaint, measured)

    def _alone(self, target: str, repeat: int) -> Record:
        """On the gateway's CPU."""
        times = {"ramp": self.load.ramp_s, "warm": self.load.warm_s, "window": self.load.window_s}
        argv = [*pinned_to(self.hall.seats.gateway), sys.executable, "-m", "loadtest.bench.grpc_aio"]
        argv += ["--target", target, "--streams", str(self.load.streams), "--tokens", str(self.load.tokens)]
        argv += [text for name, value in times.items() for text in (f"--{name}", str(value))]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False, timeout=self.load.longest_s + 60)
        if done.returncode:
            return Record(TRITON.name, GRPC_ALONE, repeat, done.stderr.decode()[-500:] or "failed")
        values: dict[str, float] = orjson.loads(done.stdout)
        extra = {
            "cpu_us_per_token": values["cpu_s"] * 1e6 / values["tokens"],
            "tokens_per_s": values["tokens"] / values["window_s"],
        }
        return Record(TRITON.name, GRPC_ALONE, repeat, None, extra=extra)
