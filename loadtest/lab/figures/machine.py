"""The machine that a run was made on, in one line."""

import os
import platform
import re
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

    def __str__(self) -> str:
        hardware = f"{self.cpu}, {self.cpus} CPUs, {self.memory_gib:.0f} GiB"
        return f"{hardware}; {self.system}, Linux {self.kernel}; Python {self.python}"


def _first(pattern: str, path: str) -> str | None:
    """Returns group 1 of the pattern's first match in a file; None without a match or a file."""
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None
