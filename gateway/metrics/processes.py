"""CPU, memory, descriptors and event-loop tasks of the node's processes, one series per worker."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.tally import Tally
from gateway.shared import Member

TASKS_INTERVAL_S = 1.0


class WorkerCollector(Collector):
    """One series per live worker. `tasks`: how many tasks its event loop had alive when it last counted them."""

    def __init__(self, read_workers: Callable[[], Sequence[Member]], tasks: Callable[[int], int]) -> None:
        self._read_workers = read_workers
        self._tasks = tasks

    def collect(self) -> Iterator[Metric]:
        workers = self._read_workers()
        tasks = GaugeMetricFamily("crossover_tasks", "Tasks alive on the event loop", labels=["worker"])
        for worker in workers:
            tasks.add_metric([str(worker.index)], self._tasks(worker.index))
        yield tasks
        yield from _collect_processes(workers)


def _collect_processes(workers: Sequence[Member]) -> Iterator[Metric]:
    families: dict[str, Metric] = {}
    for worker in workers:
        collector = ProcessCollector(pid=lambda pid=worker.pid: pid, registry=None)  # type: ignore[misc]  # typed without default
        for metric in collector.collect():
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {"worker": str(worker.index)}, sample.value)
    yield from families.values()


def note_tasks(tally: Tally) -> None:
    """Notes the number of tasks, to find leaks: at rest it returns to the same figure. 0 outside an event loop."""
    try:
        tally.note_tasks(len(asyncio.all_tasks()))
    except RuntimeError:
        tally.note_tasks(0)


@asynccontextmanager
async def noting_tasks(tally: Tally) -> AsyncIterator[None]:
    """Lets other workers read, while inside, how many tasks were alive in this one, at most a second ago."""
    async with asyncio.TaskGroup() as tasks:
        noting = tasks.create_task(_note_tasks_for_ever(tally))
        try:
            yield
        finally:
            noting.cancel()


async def _note_tasks_for_ever(tally: Tally) -> None:
    while True:
        note_tasks(tally)
        await asyncio.sleep(TASKS_INTERVAL_S)
