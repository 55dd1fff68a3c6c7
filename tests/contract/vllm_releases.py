"""The releases of vLLM that `make stacks` installs, and what their own code says of command lines and of bodies."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from deploy.cpu import STACKS, StackMissing

CHECK = Path(__file__).with_name("vllm_check.py")
Body: TypeAlias = tuple[str, Mapping[str, object]]  # a route, and a JSON document for it


@dataclass(frozen=True, slots=True)
class Release:
    """`variables`: the environment in which the Python of .stacks/vllm runs it."""

    version: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.version

    def check(self, commands: Sequence[Sequence[str]] = (), bodies: Sequence[Body] = ()) -> list[list[str]]:
        """Complaints for each command and then for each body; see vllm_check.py."""
        done = subprocess.run(
            [find_python(), CHECK],
            input=json.dumps({"commands": commands, "bodies": bodies}),
            env=dict(self.variables),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        assert answer["version"] == self.version
        complaints: list[list[str]] = [*answer["commands"], *answer["bodies"]]
        assert len(complaints) == len(commands) + len(bodies)
        return complaints


def find_python() -> Path:
    for name in ("vllm", "vllm-newest"):
        if not (STACKS / name / ".installed").exists():
            raise StackMissing(f"{STACKS / name} is not installed: run `make stacks` (Linux x86-64)")
    return STACKS / "vllm/bin/python"


DEPLOYED = Release("0.32.0")
# VLLM_TARGET_DEVICE: the newest release's wheel does not call itself a CPU build.
NEWEST = Release("0.33.0", {"PYTHONPATH": str(STACKS / "vllm-newest"), "VLLM_TARGET_DEVICE": "cpu"})
