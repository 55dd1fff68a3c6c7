"""The tritonserver inside an environment with the wheel nvidia-pytriton, and the files that it needs beside its binary.

In: the environment's directory, and the interpreter whose packages the model imports. Out: paths, and a backend
directory whose Python stub fits that interpreter.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.process import CannotStart

OLDEST_PYTHON = (3, 10)  # of the reference engine; the wheel has stubs for older ones
FACTS = """
import json, site, sys, sysconfig
version = f"{sys.version_info.major}.{sys.version_info.minor}"
libraries = sysconfig.get_config_var("LIBDIR") or ""
print(json.dumps({"version": version, "packages": site.getsitepackages(), "libraries": libraries}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that Triton's stub embeds, with the directories of its packages and of its own library."""

    path: Path
    version: str  # "3.11"
    packages: tuple[str, ...]
    libraries: str

    @classmethod
    def at(cls, path: Path) -> "Interpreter":
        """Ask the interpreter at `path` for its facts. Raises CannotStart if it does not run."""
        try:
            printed = subprocess.run([path, "-c", FACTS], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as exc:
            raise CannotStart(f"{path} is no Python interpreter: {exc}") from exc
        found = json.loads(printed)
        packages = tuple(directory for directory in found["packages"] if Path(directory).is_dir())
        return cls(path.absolute(), found["version"], packages, found["libraries"])


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
    def libraries(self) -> str:
        """The directory of the wheel's own libraries."""
        return str(self.packages / "nvidia_pytriton.libs")

    def interpreter(self) -> Interpreter:
        """This environment's own interpreter. Raises CannotStart if Triton has no stub for its version."""
        self.stub(self.python, self.root)
        return Interpreter.at(self.root / "bin/python")

    def stub(self, version: str, owner: Path) -> Path:
        """The Python backend's program for an interpreter version. CannotStart names `owner` where there is none."""
        stubs = {
            path.parent.name: path for path in self.triton.glob("python_backend_stubs/*/triton_python_backend_stub")
        }
        usable = sorted((name for name in stubs if _version(name) >= OLDEST_PYTHON), key=_version)
        if version not in usable:
            raise CannotStart(f"{owner} has Python {version}; Triton's Python backend here runs {', '.join(usable)}")
        return stubs[version]


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))


@contextlib.contextmanager
def backend_directory(environment: Environment, interpreter: Interpreter) -> Iterator[Path]:
    """A backend directory for tritonserver: the Python backend, with the stub that fits beside its library."""
    stub = environment.stub(interpreter.version, interpreter.path)
    with tempfile.TemporaryDirectory(prefix="crossover-triton-") as directory:
        python = Path(directory, "python")
        python.mkdir()
        for file in (environment.triton / "backends/python").iterdir():
            (python / file.name).symlink_to(file)
        (python / stub.name).symlink_to(stub)
        yield Path(directory)
