"""The machine a run was made on, in a few lines."""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cpus: int
    memory_gib: float
    kernel: str
    system: str
    python: str

    @classmethod
    def here(cls) -> "Machine":
        return cls(
            cpu=_first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.machine(),
            cpus=len(os.sched_getaffinity(0)),
            memory_gib=int(_first(r"^MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / (1 << 20),
            kernel=platform.release(),
            system=_first(r'^PRETTY_NAME="?([^"\n]+)', "/etc/os-release") or platform.system(),
            python=platform.python_version(),
        )

    def describe(self) -> str:
        return (
            f"{self.cpu}, {self.cpus} CPUs, {self.memory_gib:.0f} GiB; {self.system}, Linux {self.kernel}; "
            f"Python {self.python}"
        )


def describe_versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _first(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None
