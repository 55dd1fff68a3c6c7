"""A gateway as a process of its own before the reference engine's servers, and what it tells an operator."""

import asyncio
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import yaml

from deploy.stacks import MODEL, WEIGHTS, crossover_script
from tests.engines.wires.servers import ready_line

Json: TypeAlias = Any  # what the gateway answered, read key by key

POLICY = {"kind": "threshold", "low": "triton", "high": "vllm", "up": 48, "down": 40}
SOON_S = 40.0  # far more than it takes, for the machine may be busy


@dataclass
class Gateway:
    """`client` keeps its connection, and so stays with one worker; `strangers` asks on a new one each time."""

    client: httpx.Client
    strangers: httpx.Client
    log: Path

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def read(self, path: str) -> Json:
        response = self.client.get(path)
        assert response.status_code == 200, response.text
        return response.json()

    def put(self, **policy: object) -> Json:
        response = self.client.put("/admin/policy", json={**POLICY, **policy})
        assert response.status_code == 200, response.text
        return response.json()

    def metric(self, name: str, model: str = MODEL) -> dict[str, float]:
        """A model's samples of that name, by their labels as they stand on the page."""
        page = self.client.get("/metrics").text
        samples = re.findall(rf"(?m)^{name}{{(.*)}} (\S+)$", page)
        return {labels: float(value) for labels, value in samples if f'model="{model}"' in labels}

    def backend(self, name: str, *fields: str, model: str = MODEL) -> dict[str, Json]:
        models = {entry["model"]: entry for entry in self.read("/admin/state")["models"]}
        state = models[model]["backends"][name]
        return {field: state[field] for field in fields}

    def by_worker(self, name: str, field: str) -> dict[int, Json]:
        """The field as each worker tells it. Whom a connection reaches is chance, if several come at once."""

        def ask(_: int) -> tuple[int, Json] | None:
            try:
                state = self.strangers.get("/admin/state").json()
            except httpx.TransportError:  # a worker that has just been killed
                return None
            return state["answered_by"], state["models"][0]["backends"][name][field]

        with ThreadPoolExecutor(4) as pool:
            return dict(filter(None, pool.map(ask, range(8))))

    def pid_of(self, worker: int) -> int:
        return int(self.read("/admin/state")["workers"][worker]["pid"])

    async def counts(self, name: str, model: str = MODEL, **fields: object) -> None:
        """Wait until a backend's state has these fields."""
        await becomes(lambda: self.backend(name, *fields, model=model), fields)

    async def engine(self, name: str, model: str = MODEL) -> Json:
        """What /version says of an engine, once it has told who it is."""
        await becomes(lambda: self.read("/version")["models"][model][name]["engine"] is not None, True)
        return self.read("/version")["models"][model][name]

    async def is_stale(self, *changes: Json) -> None:
        await becomes(lambda: self.read("/admin/policy")["stale"], list(changes))

    async def logs(self, words: str) -> None:
        await becomes(lambda: words in self.log.read_text(), True)


async def becomes(read: Callable[[], object], wanted: object) -> None:
    """Wait until it reads as wanted; fails with the last that was read."""
    deadline = asyncio.get_running_loop().time() + SOON_S
    while (seen := await asyncio.to_thread(read)) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"{seen} is not {wanted}"
        await asyncio.sleep(0.05)


@contextmanager
def gateway(folder: Path, models: Mapping[str, Mapping[str, object]], **settings: object) -> Iterator[Gateway]:
    """`crossover serve` before each model's backends; it reads evidence ten times a second."""
    evidence = {"interval_s": 0.1, "drift_for_s": 0.5}
    entries = [
        {"id": model, "tokenizer": str(WEIGHTS), "backends": backends, "policy": POLICY}
        for model, backends in models.items()
    ]
    document = {"listen": "127.0.0.1:0", "evidence": evidence, "models": entries, **settings}
    (folder / "crossover.yaml").write_text(yaml.safe_dump(document))
    log = folder / "gateway.log"
    command = (crossover_script(), "serve", "-c", str(folder / "crossover.yaml"))
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            url = ready_line(process).split()[1].removesuffix("/v1")
            none_kept = httpx.Limits(max_keepalive_connections=0)
            with (
                httpx.Client(base_url=url, timeout=SOON_S) as client,
                httpx.Client(base_url=url, timeout=SOON_S, limits=none_kept) as strangers,
            ):
                yield Gateway(client, strangers, log)
        finally:
            process.terminate()
            process.wait(30)
