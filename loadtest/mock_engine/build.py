"""Builds C programs on first use; later uses find the program by a digest of its sources.

In: a source file and a cache directory. Out: the path of an executable.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from loadtest.mock_engine.process import CannotMeasure

NATIVE = Path(__file__).parent / "native"
MOCK, WIRE = NATIVE / "mock.c", NATIVE / "wire.h"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra")
COMPILERS = ("cc", "gcc", "clang")


def build(source: Path, cache: Path) -> Path:
    """Returns the program of one C file, which may include wire.h. Raises CannotMeasure where it cannot be compiled."""
    program = cache / f"{source.stem}-{_digest(source)}"
    if not program.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _compile(source, program)
    return program


def _digest(source: Path) -> str:
    parts = [" ".join(FLAGS).encode(), WIRE.read_bytes(), source.read_bytes()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _compile(source: Path, program: Path) -> None:
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        output = Path(scratch, program.name)
        command = [compiler, *FLAGS, "-I", str(NATIVE), "-o", str(output), str(source)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise CannotMeasure(f"{compiler} could not build {source.name}:\n{built.stderr[-2000:]}")
        output.replace(program)  # in one step, in case another run builds the same


def find_compiler(path: str | None = None) -> str:
    """Returns the C compiler to use; `path` is searched instead of PATH. Raises CannotMeasure."""
    if sys.platform != "linux":
        raise CannotMeasure("the mock engine and the load client need Linux (epoll, /proc)")
    for name in COMPILERS:
        if compiler := shutil.which(name, path=path):
            return compiler
    raise CannotMeasure(
        "no C compiler found (looked for cc, gcc, clang); the mock engine and the load client are built on first use: "
        "apt-get install gcc libc6-dev, or what installs one on this system"
    )
