"""Several workers (pytest -n 2): which tests stay together in one of them, in what order, and which run alone.

A pytest plugin. Tests that share a stack stay together, so that it starts once; so do those of a file. What is marked
`alone` waits until every other worker's test has ended, and they wait for it.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from deploy.cpu import STARTUP_S

# Whichever comes first waits for two real servers to start.
ON_CPU_STACK = (pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("cpu"))
SHARED = {"paced_stack": "paced"}  # fixture -> group
ALONE = "alone"
# The longest first, or they would go on long after all others have ended.
ORDER = (
    "cpu",
    "contract/test_vllm_server",
    "random",
    "trained",
    "system/test_failover",
    "commands/test_workers",
    "evidence/test_gateway",
)
FOLDER = "crossover_folder"  # what a worker is told: where all of one run meet
GROUPS = "groups.json"
meeting = pytest.StashKey[Path]()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if "cpu_stack" in getattr(item, "fixturenames", ()):
            for mark in ON_CPU_STACK:
                item.add_marker(mark)
    yield  # pytest puts together what shares a parameter
    groups = {item: find_group(item) for item in items}
    items.sort(key=lambda item: rank(groups[item]))
    folder = find_folder(config)
    if folder is not None:
        tell(folder / GROUPS, {item.nodeid: groups[item] for item in items})


def find_group(item: pytest.Item) -> str:
    """Whose tests one worker runs."""
    mark = item.get_closest_marker("xdist_group")
    if mark is not None:
        return str(mark.args[0])
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in SHARED:
            return SHARED[fixture]
    if is_alone(item):
        return ALONE
    folder, params = item.path.parent.name, getattr(getattr(item, "callspec", None), "params", {})
    if folder == "backends":  # one event loop for all of one kind, says its conftest.py
        return f"{folder} {params.get('anyio_backend')}"
    return f"{folder}/{item.path.stem}"


def rank(group: str) -> int:
    """A group's place in the order in which workers take them."""
    if group in ORDER:
        return ORDER.index(group)
    return len(ORDER) + (group == ALONE)


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker(ALONE) is not None


# Workers and the process that schedules them meet in a folder.


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None):
        # Threads for each product of matrices, in several processes on two cores, mostly wait for each other.
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # noqa: TID251 - starts processes
        # Without byte code kept, each of some two hundred processes would compile our modules again, for 0.3 s.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251 - as above
        folder = tempfile.TemporaryDirectory(prefix="crossover-tests-")
        config.add_cleanup(folder.cleanup)
        config.stash[meeting] = Path(folder.name)


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput[FOLDER] = str(node.config.stash[meeting])


def find_folder(config: pytest.Config) -> Path | None:
    """None where nobody else is at work."""
    told: dict[str, Any] = getattr(config, "workerinput", {})  # Any: by pytest-xdist
    return Path(told[FOLDER]) if FOLDER in told else None


def tell(file: Path, groups: dict[str, str]) -> None:
    """Every worker says the same; a whole file takes the place of another."""
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:
        json.dump(groups, written)
    Path(written.name).replace(file)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist publishes no types
    """Hands out one group after the other.

    `--dist loadgroup` would, but pytest 9.2 ignores what pytest-xdist 3.8 writes into a test's id (its issue 1386).
    """

    @cached_property
    def groups(self) -> dict[str, str]:
        groups: dict[str, str] = json.loads((self.config.stash[meeting] / GROUPS).read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self.groups[nodeid]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:  # Any: by pytest-xdist
    config.option.loadscopereorder = False  # the order is ours
    return GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside the timeout, which is the test's own
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    folder = find_folder(item.config)
    if folder is None:
        return (yield)
    with locked(folder / "room", is_alone(item), behind=folder / "door"):
        return (yield)


@contextmanager
def locked(room: Path, is_alone: bool, behind: Path) -> Iterator[None]:
    """Held together with others, or alone. Whoever waits for the room holds the door, so that nobody overtakes it."""
    with room.open("w") as inside:
        with behind.open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield
