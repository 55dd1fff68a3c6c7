"""Which CPUs processes run on: mock engine and client on one, or two where there are four, the gateway on another."""

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """CPU numbers of mock engine and client, of a gateway with one worker, and of one with more; empty where processes
    are not pinned.
    """

    engine: tuple[int, ...] = ()
    gateway: tuple[int, ...] = ()
    pair: tuple[int, ...] = ()

    @property
    def complaint(self) -> str | None:
        if self.gateway:
            return None
        return (
            "fewer than two CPUs: gateway, mock engine and client share one, so throughput and delays say little; "
            "CPU per request and per token still can be compared"
        )

    def of(self, workers: int) -> tuple[int, ...]:
        """Adds a third CPU, if any, for more workers: on the engine's they would hold up engine and client."""
        return self.gateway if workers == 1 else self.pair

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(sorted({*self.engine, *self.gateway, *self.pair}))

    @classmethod
    def among(cls, cpus: Sequence[int]) -> "CpuPlan":
        if len(cpus) < 2:
            return cls()
        engine, gateway = cpus[:2]
        return cls((engine, *cpus[3:4]), (gateway,), (gateway, *cpus[2:3]))

    @classmethod
    def here(cls) -> "CpuPlan":
        return cls.among(sorted(os.sched_getaffinity(0)))
