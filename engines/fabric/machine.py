"""The machine as torch describes it: values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`peers`: pairs of GPUs that reach each other's memory. `settings`: environment that NCCL or gloo reads."""

    torch: str
    cuda: str | None
    nccl: str | None
    gpus: Sequence[Gpu]
    peers: Sequence[tuple[int, int]]
    settings: Mapping[str, str]
