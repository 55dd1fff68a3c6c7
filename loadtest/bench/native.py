"""The C programs: built on first use, found again by what they were built from.

In: a cache directory. Out: paths of executables, or BenchError where there is no compiler.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.bench.errors import BenchError

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
COMPILERS = ("cc", "gcc", "clang")


def build(name: str, cache: Path) -> Path:
    """The program of native/`name`.c. Raises BenchError."""
    source = SOURCES / f"{name}.c"
    program = cache / f"{name}-{_digest(source)}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile(source, program)
    return program


def _digest(source: Path) -> str:
    parts = [" ".join(FLAGS).encode(), (SOURCES / "wire.h").read_bytes(), source.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _compile(source: Path, program: Path) -> None:
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        output = Path(scratch, program.name)
        built = subprocess.run([compiler, *FLAGS, "-o", output, source], capture_output=True, text=True, check=False)
        if built.returncode:
            raise BenchError(f"{compiler} could not build {source.name}:\n{built.stderr[-2000:]}")
        output.replace(program)  # at once, should another run be building the same


def find_compiler(path: str | None = None) -> str:
    """The C compiler to use; `path` is searched in place of PATH. Raises BenchError."""
    if sys.platform != "linux":
        raise BenchError("the mock engine and the load client need Linux (epoll, /proc)")
    for name in COMPILERS:
        if compiler := shutil.which(name, path=path):
            return compiler
    raise BenchError(
        "no C compiler found (looked for cc, gcc, clang); the mock engine and the load client are built on first use: "
        "apt-get install gcc libc6-dev, or what installs one on this system"
    )
