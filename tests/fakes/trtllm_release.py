"""A stand-in for an installed TensorRT-LLM 1.2.1 with Model Optimizer's examples beside it: programs on the path and in
folders, which take the options that engines/trtllm/contract.yaml holds, and no other (trtllm_programs.py).
"""

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.contract.facts import load_contract
from tests.fakes import trtllm_programs
from tests.fakes.trtllm_programs import OPTIONS, SCRIPTS, VERSION, Json

IMAGE = "trtllm:stand-in"
TENSORRT = "10.14.1.48"
GPUS = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01\n" * 2
PROGRAMS = Path(trtllm_programs.__file__)


def declared() -> dict[str, dict[str, Json]]:
    """The options of every program, by section and name."""
    return {
        section: {name: fact.model_dump() for name, fact in facts.items()}
        for section, facts in load_contract().sections()
        if section in {*SCRIPTS, "build", "serve"}
    }


def make_parser(section: str) -> argparse.ArgumentParser:
    return trtllm_programs.make_parser(section, declared()[section])


@dataclass(frozen=True)
class Release:
    """Where the programs lie: `bin` belongs on the path. `versions`: the packages that Python there reports."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def versions(self) -> Path:
        return self.root / "versions.json"

    @property
    def examples(self) -> Path:
        return self.root / "examples"

    @property
    def docker_log(self) -> Path:
        return self.root / "docker.log"

    def replace_program(self, name: str, script: str) -> None:
        """By a shell script."""
        program = self.bin / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def override_build(self, changes: Json) -> None:
        """Values that trtllm-build writes into build_config instead of those it was given; nested keys are merged."""
        (self.bin / "trtllm-build.json").write_text(json.dumps(changes))

    def install_version(self, name: str, version: str) -> None:
        installed = json.loads(self.versions.read_text()) if self.versions.exists() else {}
        self.versions.write_text(json.dumps({**installed, name: version}) + "\n")


def install(root: Path) -> Release:
    release = Release(root)
    (root / OPTIONS).write_text(json.dumps(declared()))
    for script in SCRIPTS.values():
        (release.examples / script).parent.mkdir(parents=True)
        (release.examples / script).symlink_to(PROGRAMS)
    release.bin.mkdir()
    python = shlex.quote(sys.executable)
    # Versions come from a file, for nothing is installed here. -S: no installed package is needed, or read.
    answer = '"$(dirname "$0")/../versions.json"'
    release.replace_program("python3", f'if [ "$1" = -c ]; then exec cat {answer}; fi\nexec {python} -S "$@"')
    release.replace_program("trtllm-build", f'exec {python} -S {shlex.quote(str(PROGRAMS))} trtllm-build "$0" "$@"')
    release.replace_program("nvidia-smi", f"cat <<'END'\n{GPUS}END")
    # The real one needs a daemon; this runs the command behind the image's name, and records its arguments.
    note = f"printf '%s\\n' \"$*\" >> {shlex.quote(str(release.docker_log))}"
    release.replace_program("docker", f'{note}\nwhile [ "$1" != {IMAGE} ]; do shift; done\nshift\nexec "$@"')
    release.install_version("tensorrt_llm", VERSION)
    release.install_version("tensorrt", TENSORRT)
    return release
