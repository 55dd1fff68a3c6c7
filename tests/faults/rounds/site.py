"""Stacks for measurements: more keys in crossover.yaml, and what the gateway's workers hold.

In: a Stack. Out: a Launched whose workers can be found and weighed.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml

from deploy.embedded import Pace
from deploy.launch import Launched
from deploy.stacks import Stack, crossover_script
from tests.faults.stand import find_workers
from tests.system.site import Site


@dataclass(frozen=True, slots=True)
class Extended(Stack):
    """A stack whose crossover.yaml has further keys of the whole gateway."""

    whole: Mapping[str, object] = field(default_factory=dict)

    def configuration(self, port: int) -> str:
        return Stack.configuration(self, port) + yaml.safe_dump(dict(self.whole))


def extend(stack: Stack, whole: Mapping[str, object], backend: Mapping[str, object]) -> Extended:
    """Adds keys of the whole gateway, and keys of each backend."""
    backends = {name: {**keys, **backend} for name, keys in stack.backends.items()}
    return Extended(stack.name, stack.engines, backends, stack.startup_s, stack.weights, stack.context_length, whole)


def create_key(running: Launched, name: str) -> str:
    """Returns a new key of that name, for inference."""
    configuration = str(running.run_dir / "crossover.yaml")
    command = [crossover_script(), "keys", "create", name, "-c", configuration]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (key,) = re.findall(r"\S{30,}", printed)
    return str(key)


async def use_curve(site: Site, pace: Pace, *, is_shared: bool) -> None:
    """Sets the policy `curve` at its defaults, with the node model that the engines are paced by."""
    policy = {"kind": "curve", "low": "triton", "high": "vllm", "node": pace.describe_node(is_shared=is_shared)}
    async with site.session.put(f"{site.url}/admin/policy", json=policy) as response:
        assert response.status == 200, await response.text()


async def count_errors(site: Site) -> float:
    """Attempts on backends that ended by an error of the backend: each answer that lost its engine is one."""
    samples = await site._samples(f"{site.url}/metrics")
    ends = [sample for sample in samples if sample.name == "crossover_requests_total"]
    return sum(sample.value for sample in ends if sample.labels["outcome"].startswith("backend_"))


def measure_memory(running: Launched) -> float:
    """Returns the megabytes of all workers; what they share counts once."""
    return weigh(find_workers(running))


def weigh(pids: Iterable[int]) -> float:
    """Returns megabytes in proportion to how many share them (PSS)."""
    pages = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.findall(r"^Pss: +(\d+) kB", page, re.MULTILINE)[0]) for page in pages) * 1024 / 1e6


def open_session(key: str = "") -> aiohttp.ClientSession:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers)
