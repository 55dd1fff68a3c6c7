"""What each rank runs, on any Python with torch: this file alone, it imports nothing of ours.

In: `worker.py describe`, or `worker.py measure JOB` with a job as JSON. Out: JSON lines on stdout; exit code 3 says
that an all-reduce gave a wrong sum. Knows no bandwidth, no model and no report.
"""

import json
import math
import os
import sys
import time
from datetime import timedelta
from typing import Any  # torch's types are not at hand where this file is checked

import torch
import torch.distributed as dist

WRONG_SUM = 3
CAPTURED = 10  # all-reduces in one CUDA graph
WARM_UP = 3
MOST_LOOPS = 200
# Whatever begins so changes which algorithm NCCL runs, so it belongs to what was measured.
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
    """One process of the group, and the buffer whose beginnings it sums with the others."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.is_cuda = job["device"] is not None
        self.device = torch.device("cuda", job["device"]) if self.is_cuda else torch.device("cpu")
        # Engines sum activations in 16 bits; gloo is a stand-in, and float32 is what every release of it sums.
        dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.buffer = torch.zeros(max(job["sizes"]) // dtype.itemsize, dtype=dtype, device=self.device)
        self.graphs: dict[int, Any] = {}

    def part(self, size: int) -> Any:
        return self.buffer[: size // self.buffer.itemsize]

    def run(self) -> None:
        """Every size is checked and warmed up; then rounds over all sizes, so that drift falls on all alike."""
        for size in self.job["sizes"]:
            self.check(size)
            self.say({"checked": size})
        plan = [(way, size, self.count_loops(way, size)) for way in self.job["ways"] for size in self.job["sizes"]]
        for repeat in range(self.job["repeats"]):
            for way, size, loops in plan:
                seconds = self.agree(self.time(way, size, loops))
                self.say({"repeat": repeat, "way": way, "bytes": size, "loops": loops, "seconds": seconds})
        self.say({"done": True})

    def check(self, size: int) -> None:
        part, ranks = self.part(size), self.job["ranks"]
        part.fill_(self.job["rank"] + 1)
        dist.all_reduce(part)
        if not bool((part == ranks * (ranks + 1) // 2).all()):
            sys.stderr.write(f"rank {self.job['rank']}: an all-reduce of {size} bytes gave a wrong sum\n")
            sys.stderr.flush()
            os._exit(WRONG_SUM)  # the others still wait in it: an orderly end would wait for them
        part.zero_()

    def count_loops(self, way: str, size: int) -> int:
        """The same on every rank, so many that a timed window is long against its edges."""
        self.time(way, size, WARM_UP)
        usual = self.agree(self.time(way, size, WARM_UP))
        self.say({"warmed_up": size})
        wanted: int = math.ceil(self.job["window_s"] / usual)
        return max(1, min(MOST_LOOPS, wanted))

    def time(self, way: str, size: int, loops: int) -> float:
        """Seconds for one all-reduce, the mean of at least `loops` back to back. In place, as engines do it."""
        self.meet()
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
        self.meet()
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

    def meet(self) -> None:
        if self.is_cuda:
            dist.barrier(device_ids=[self.job["device"]])
            torch.cuda.synchronize()
        else:
            dist.barrier()

    def agree(self, seconds: float) -> float:
        """The slowest rank's: a layer goes on when all have the sum."""
        told = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return float(told.item())

    def say(self, line: dict[str, Any]) -> None:
        if self.job["rank"] == 0:
            tell(line)


def measure(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    if job["device"] is not None:
        torch.cuda.set_device(job["device"])
    dist.init_process_group(
        job["backend"],
        init_method=f"file://{job['meeting']}",
        rank=job["rank"],
        world_size=job["ranks"],
        timeout=timedelta(seconds=job["timeout_s"]),
    )
    rank = Rank(job)
    rank.run()
    rank.graphs.clear()  # a communicator that a graph still holds is never destroyed
    dist.destroy_process_group()


def tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        tell(describe())
    else:
        measure(json.loads(sys.argv[2]))
