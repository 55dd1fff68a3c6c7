"""A stack whose gateway reaches its engines through proxies, for tests that break what lies between.

In: a Stack. Out: a Stand: a Site with proxies, whose gateway's workers can be counted and measured.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from deploy.launch import LOGS, Launched, fit_tokenizer
from deploy.ports import LOCALHOST, find_free
from deploy.processes import Process
from deploy.stacks import GATEWAY, Stack, gateway
from deploy.supervisor import Supervisor
from tests.faults.proxy import Proxies, proxied
from tests.processes import find_children
from tests.system.site import Site, leash_of

ENGINES = ("triton", "vllm")
SILENT_S = 5.0  # an engine may be, before an answer that may not move counts as failed


@dataclass(frozen=True, slots=True)
class Broken:
    """A stack that runs, and what can be broken of it."""

    running: Launched
    proxies: Proxies


@contextmanager
def broken(stack: Stack, folder: Path, workers: int = 1, idle_timeout_s: float = SILENT_S) -> Iterator[Broken]:
    """Ready inside the block, ended after it."""
    stack = fit_tokenizer(stack, folder)
    engine_ports = {name: urlsplit(str(backend["url"])).port or 0 for name, backend in stack.backends.items()}
    with proxied(engine_ports) as proxies, Supervisor(folder / LOGS) as supervisor:
        (port,) = find_free(1)
        urls = {name: f"{urlsplit(str(stack.backends[name]['url'])).scheme}://{LOCALHOST}" for name in ENGINES}
        changes = {
            name: {"url": f"{urls[name]}:{proxies.ports[name]}", "idle_timeout_s": idle_timeout_s} for name in ENGINES
        }
        behind = replace(stack, backends={name: {**stack.backends[name], **changes[name]} for name in ENGINES})
        configuration = folder / "crossover.yaml"
        configuration.write_text(behind.configuration(port))
        served = gateway(configuration, port)
        served = replace(served, command=(*served.command, "--workers", str(workers)))
        for process in (*stack.engines, served):
            supervisor.start(process)
        supervisor.wait_until_ready(stack.startup_s, lambda *_: None)
        yield Broken(Launched(stack, f"http://{LOCALHOST}:{port}", folder, supervisor), proxies)


class Stand(Site):
    def __init__(self, broken: Broken, session: aiohttp.ClientSession) -> None:
        super().__init__(broken.running, session)
        self.proxies = broken.proxies

    async def prefer(self, engine: str) -> None:
        """Every request goes there, as long as it is used."""
        (other,) = set(ENGINES) - {engine}
        await self.set_policy(low=engine, high=other, up=1000, down=999, dwell_s=0.0)

    async def is_left(self, engine: str) -> bool:
        backend = (await self.state())["backends"][engine]
        return not backend["ready"] or bool(backend["ejected"])

    @property
    def workers(self) -> list[int]:
        return find_workers(self.stack)

    @property
    def log(self) -> str:
        return (self.stack.run_dir / LOGS / f"{GATEWAY}.log").read_text(errors="replace")

    async def settle(self) -> int:
        """In flight, once that is nothing or does not become it."""
        found = 0
        for _ in range(100):
            if (found := await self.in_flight()) == 0:
                break
            await asyncio.sleep(0.1)
        return found


def find_workers(running: Launched) -> list[int]:
    """Returns the pids of the gateway's workers."""
    return find_workers_of(leash_of(running, GATEWAY))


def find_workers_of(pid: int) -> list[int]:
    """Returns the pids of the workers beneath a process."""
    return sorted(worker for worker, command in find_children(pid).items() if "gateway.commands.worker" in command)


def find_engine(site: Site, name: str) -> Process:
    return next(process for process in site.stack.stack.engines if process.name == name)


def count_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - the count is all


def count_sockets(pid: int) -> int:
    kinds = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds.append(str(entry.readlink()))
        except FileNotFoundError:  # it was closed in between
            continue
    return sum(kind.startswith("socket:") for kind in kinds)


def measure_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
