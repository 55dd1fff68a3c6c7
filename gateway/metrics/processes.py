"""CPU, memory, descriptors and event-loop tasks of the node's processes, one series per worker."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.tally import Tally
from gateway.shared import Member


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
    """Notes the number of tasks, to find leaks: at rest it returns to the same figure. 0 outside an event loop.

    Each worker notes its own on its beat, so that any of them can show all.
    """
    try:
        tally.note_tasks(len(asyncio.all_tasks()))
    except RuntimeError:
        tally.note_tasks(0)
