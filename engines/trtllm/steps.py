"""A step is one command with its reason; a place is where it runs: on this host, or in a container of an image."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

WIDTH = 100


@dataclass(frozen=True, slots=True)
class Step:
    purpose: str
    argv: tuple[str, ...]


class Place(Protocol):
    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Host:
    """This host. `gpu_ids` are as nvidia-smi numbers them; without them a command sees all GPUs."""

    gpu_ids: tuple[int, ...] = ()

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        visible = ",".join(map(str, self.gpu_ids))
        return ("env", f"CUDA_VISIBLE_DEVICES={visible}", *argv) if visible else tuple(argv)


@dataclass(frozen=True, slots=True)
class Container:
    """A container of an image. Paths are the same inside as outside, so that a command reads alike in both places."""

    image: str
    inputs: tuple[Path, ...] = ()
    outputs: tuple[Path, ...] = ()
    gpu_ids: tuple[int, ...] = ()

    def wrap(self, argv: Sequence[str]) -> tuple[str, ...]:
        # Docker reads this option as CSV: a list of devices has to bring its quotes along.
        gpus = f'"device={",".join(map(str, self.gpu_ids))}"' if self.gpu_ids else "all"
        mounts = [f"{path}:{path}:ro" for path in self.inputs] + [f"{path}:{path}" for path in self.outputs]
        return (
            *("docker", "run", "--rm", "--init", "--gpus", gpus),
            # NCCL and the workers of a build share memory; Docker's 64 MB are too few.
            *("--ipc=host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
            *(part for mount in mounts for part in ("--volume", mount)),
            self.image,
            *argv,
        )


def show_command(argv: Sequence[str]) -> str:
    """Returns the command as a shell takes it; if it is long, each option with its value is on a line of its own."""
    words = [shlex.quote(word) for word in argv]
    if len(" ".join(words)) <= WIDTH:
        return " ".join(words)
    lines: list[list[str]] = [[]]
    for word in words:
        is_full = len(lines[-1]) > 1 and lines[-1][0].startswith("-")
        if lines[-1] and (word.startswith("-") or is_full):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(line) for line in lines)
