"""All-reduces between ranks, timed: this file alone runs in any Python with torch, and imports nothing of ours.

In: `worker.py describe`, or `worker.py measure JOB` with a job as JSON. Out: JSON lines on stdout. Exit code 3: an
all-reduce gave a wrong sum. Knows no bandwidth, no model and no report.
"""

import json
import math
import os
import re
import sys
import time
from datetime import timedelta
from typing import Any  # torch's types are not at hand where this file is checked

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WRONG_SUM = 3
CAPTURED = 10  # all-reduces in one CUDA graph
WARM_UP = 3
MAX_LOOPS = 200
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
# Variables with these beginnings change which algorithm NCCL runs, so the report lists them.
SETTINGS = ("NCCL_", "GLOO_")


def describe() -> dict[str, Any]:
    count = torch.cuda.device_count()
    found = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if count and dist.is_nccl_available() else None,
        "gpus": [{"name": each.name, "memory_bytes": each.total_memory} for each in found],
        "peers": [[a, b] for a in range(count) for b in range(count) if a != b and _can_reach(a, b)],
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},  # noqa: TID251 - read by NCCL, not by us
    }


def _can_reach(a: int, b: int) -> bool:
    return bool(torch.cuda.can_device_access_peer(a, b))


class Rank:
    """One process of the group, and the buffer whose first bytes it sums with the others."""

    def __init__(self, rank: int, job: dict[str, Any]) -> None:
        self.rank, self.job = rank, job
        index = job["devices"][rank]
        self.is_cuda = index is not None
        self.device = torch.device("cuda", index) if self.is_cuda else torch.device("cpu")
        # Engines sum activations in 16 bits; gloo is a stand-in, and float32 is what every release of it sums.
        dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.buffer = torch.zeros(max(job["sizes"]) // dtype.itemsize, dtype=dtype, device=self.device)
        self.graphs: dict[int, Any] = {}

    def part(self, size: int) -> Any:
        return self.buffer[: size // self.buffer.itemsize]

    def run(self) -> None:
        """Checks and warms up every size, then times rounds over all sizes, so that drift falls on all alike."""
        for size in self.job["sizes"]:
            self.check(size)
            self.write({"checked": size})
        plan = [(way, size, self.count_loops(way, size)) for way in self.job["ways"] for size in self.job["sizes"]]
        for repeat in range(self.job["repeats"]):
            for way, size, loops in plan:
                seconds = self.find_slowest(self.time(way, size, loops))
                self.write({"repeat": repeat, "way": way, "bytes": size, "loops": loops, "seconds": seconds})

    def check(self, size: int) -> None:
        part, ranks = self.part(size), len(self.job["devices"])
        part.fill_(self.rank + 1)
        dist.all_reduce(part)
        if not bool((part == ranks * (ranks + 1) // 2).all()):
            sys.stderr.write(f"rank {self.rank}: an all-reduce of {size} bytes gave a wrong sum\n")
            sys.stderr.flush()
            os._exit(WRONG_SUM)  # the others still wait in it: an orderly end would wait for them
        part.zero_()

    def count_loops(self, way: str, size: int) -> int:
        """Returns a number, the same on every rank, at which a timed window is long against its edges."""
        self.time(way, size, WARM_UP)
        usual = self.find_slowest(self.time(way, size, WARM_UP))
        self.write({"warmed_up": size})
        wanted: int = math.ceil(self.job["window_s"] / usual)
        return max(1, min(MAX_LOOPS, wanted))

    def time(self, way: str, size: int, loops: int) -> float:
        """Returns the seconds of one all-reduce, the mean of at least `loops` back to back, in place as engines do."""
        self.wait_for_all()
        if way == "graph":
            return self.time_graph(size, loops)
        part = self.part(size)
        return self.time_calls(lambda: dist.all_reduce(part), loops)

    def time_graph(self, size: int, loops: int) -> float:
        if size not in self.graphs:
            self.graphs[size] = self.capture(size)
        return self.time_calls(self.graphs[size].replay, max(1, math.ceil(loops / CAPTURED))) / CAPTURED

    def capture(self, size: int) -> Any:
        part, graph = self.part(size), torch.cuda.CUDAGraph()
        # The group's watchdog thread queries events meanwhile; the default mode takes that for the capture's error.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(CAPTURED):
                dist.all_reduce(part)
        graph.replay()
        self.wait_for_all()
        return graph

    def time_calls(self, call: Any, times: int) -> float:
        if not self.is_cuda:
            began = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - began) / times
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / times

    def wait_for_all(self) -> None:
        if self.is_cuda:
            dist.barrier(device_ids=[self.device.index])
            torch.cuda.synchronize()
        else:
            dist.barrier()

    def find_slowest(self, seconds: float) -> float:
        """The slowest rank's time: a layer goes on when all have the sum."""
        slowest = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest.item())

    def write(self, line: dict[str, Any]) -> None:
        if self.rank == 0:
            write(line)


def run_rank(rank: int, job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if job["devices"][rank] is not None:
        torch.cuda.set_device(job["devices"][rank])
    dist.init_process_group(
        job["backend"],
        init_method=f"file://{job['meeting']}",
        rank=rank,
        world_size=len(job["devices"]),
        timeout=timedelta(seconds=job["silence_s"]),
    )
    member = Rank(rank, job)
    member.run()
    member.graphs.clear()  # a communicator that a graph still holds is never destroyed
    dist.destroy_process_group()


def measure(job: dict[str, Any]) -> None:
    """Runs one process for each rank. Where one fails, torch ends the others."""
    ranks = mp.start_processes(run_rank, (job,), nprocs=len(job["devices"]), join=False, start_method="spawn")
    try:
        while not ranks.join():
            pass
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as exc:
        if any(rank.exitcode == WRONG_SUM for rank in ranks.processes):
            sys.exit(WRONG_SUM)  # that rank wrote the message
        lines = exc.msg.strip().splitlines()  # a traceback, and an error that may have several lines
        sys.exit(f"rank {exc.error_index}: {([line for line in lines if ERROR.match(line)] or lines)[-1]}")


def write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        write(describe())
    else:
        measure(json.loads(sys.argv[2]))
