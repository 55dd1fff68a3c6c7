"""The tritonserver inside an environment with the wheel nvidia-pytriton, and what it needs beside its binary.

In: the environment's directory. Out: paths, a library path, a backend directory whose Python stub fits the interpreter.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.process import CannotStart

OLDEST_PYTHON = (3, 10)  # of the reference engine; the wheel's stubs begin earlier


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds nvidia-pytriton."""

    root: Path
    python: str  # "3.11"

    @classmethod
    def at(cls, root: Path) -> "Environment":
        found = sorted(root.glob("lib/python3.*/site-packages/pytriton/tritonserver/bin/tritonserver"))
        if not found:
            raise CannotStart(f"no nvidia-pytriton in {root}: run `make stacks` (Linux x86-64)")
        return cls(root, found[0].relative_to(root / "lib").parts[0].removeprefix("python"))

    @property
    def packages(self) -> Path:
        return self.root / f"lib/python{self.python}/site-packages"

    @property
    def triton(self) -> Path:
        return self.packages / "pytriton/tritonserver"

    @property
    def stub(self) -> Path:
        """The Python backend's interpreter for this environment's packages."""
        stubs = {
            path.parent.name: path for path in self.triton.glob("python_backend_stubs/*/triton_python_backend_stub")
        }
        usable = sorted((name for name in stubs if _version(name) >= OLDEST_PYTHON), key=_version)
        if self.python not in usable:
            raise CannotStart(
                f"{self.root} has Python {self.python}; Triton's Python backend here runs {', '.join(usable)}"
            )
        return stubs[self.python]

    def library_path(self) -> str:
        """The wheel's own libraries, and the interpreter's, for the stub embeds libpython."""
        script = "import sysconfig; print(sysconfig.get_config_var('LIBDIR') or '')"
        found = subprocess.run([self.root / "bin/python", "-c", script], capture_output=True, text=True, check=True)
        return os.pathsep.join([str(self.packages / "nvidia_pytriton.libs"), found.stdout.strip()])


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


@contextlib.contextmanager
def backend_directory(environment: Environment) -> Iterator[Path]:
    """What tritonserver calls a backend directory: the Python backend, with the stub that fits beside its library."""
    with tempfile.TemporaryDirectory(prefix="crossover-triton-") as directory:
        python = Path(directory, "python")
        python.mkdir()
        for file in (environment.triton / "backends/python").iterdir():
            (python / file.name).symlink_to(file)
        (python / environment.stub.name).symlink_to(environment.stub)
        yield Path(directory)
