"""Runs a recipe's steps one after the other, up to the first that fails, and writes the manifest of the result.

In: a Plan. Out: a finished directory. A step's own output goes straight to the terminal.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from engines.directory.checkpoint import TEMPLATE, TOKENIZER, hash_present, hash_weights, read_checkpoint
from engines.directory.manifest import Builder, Hash, Manifest, Source, mark_files, write_manifest
from engines.directory.node import NodeFacts
from engines.recipes.recipe import CompiledRecipe, Eagle, Eagle3, Medusa, Recipe
from engines.trtllm.compiled import Paths, make_compiled_steps
from engines.trtllm.llm_args import dump_llm_args, make_llm_args
from engines.trtllm.release import EXAMPLES, OPTIMIZER_EXAMPLES
from engines.trtllm.steps import Container, Host, Place, Step
from engines.trtllm.torch_flow import CHECKPOINT, LLM_ARGS, make_torch_steps, serve_command

GRACE_S = 20.0  # Docker gives a container ten seconds before it kills


class StepFailed(Exception):
    """A step failed, and none after it ran; the message names it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided before the first command runs. `name`: the recipe's name, as the user gave it."""

    name: str
    recipe: Recipe
    paths: Paths
    place: Place

    @property
    def steps(self) -> tuple[Step, ...]:
        recipe, paths = self.recipe, self.paths
        bare = (
            make_compiled_steps(recipe, paths)
            if isinstance(recipe, CompiledRecipe)
            else make_torch_steps(recipe, paths)
        )
        return tuple(Step(step.purpose, self.place.wrap(step.argv)) for step in bare)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that the commands write into."""
        return _name_outputs(self.recipe, self.paths)

    @property
    def serve(self) -> tuple[str, ...] | None:
        """How to serve a checkpoint of the PyTorch flow; Triton serves an engine, from a model repository."""
        return None if isinstance(self.recipe, CompiledRecipe) else serve_command(self.recipe, self.paths)

    @property
    def cure(self) -> str:
        """The cure where all commands succeeded and made something else: they would make the same again."""
        return f"change {self.name} to what the release gives, empty {self.paths.engine}, and build again"


def make_paths(recipe: Recipe, source: Path, engine: Path, examples: Path | None) -> Paths:
    """Puts a checkpoint that only the build reads (compiled flow) beside the engine, and one that is served inside."""
    if isinstance(recipe, CompiledRecipe):
        return Paths(source, engine.with_name(f"{engine.name}.checkpoint"), engine, examples or Path(EXAMPLES))
    return Paths(source, engine / CHECKPOINT, engine, examples or Path(OPTIMIZER_EXAMPLES))


def make_place(recipe: Recipe, paths: Paths, image: str | None, gpu_ids: tuple[int, ...]) -> Host | Container:
    """The host, or a container that reads the recipe's inputs and writes its outputs."""
    if image is None:
        return Host(gpu_ids)
    named = [paths.source, *map(Path, _name_folders(recipe))]
    if str(paths.examples) != EXAMPLES:
        named.append(paths.examples)
    inputs = [path for path in named if path.is_absolute()]
    linked = {target for path in inputs for target in _find_linked(path)}
    return Container(image, (*inputs, *sorted(linked)), _name_outputs(recipe, paths), gpu_ids)


def run_steps(steps: tuple[Step, ...], report: Callable[[str], None]) -> float:
    """Runs the steps in order and returns the seconds that they took. Raises StepFailed at the first that fails."""
    began = time.monotonic()
    for index, step in enumerate(steps, start=1):
        report(f"[{index}/{len(steps)}] {step.purpose}")
        step_began = time.monotonic()
        _run(step)
        report(f"[{index}/{len(steps)}] done in {time.monotonic() - step_began:.0f} s")
    return time.monotonic() - began


def prepare_folders(plan: Plan) -> None:
    """Makes the output folders before Docker does: Docker's would be root's, and the manifest could not be written."""
    for folder in plan.folders:
        folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(plan.recipe, CompiledRecipe):
        (plan.paths.engine / LLM_ARGS).write_text(dump_llm_args(make_llm_args(plan.recipe)))


def finish(plan: Plan, facts: NodeFacts, build_s: float, hash_one: Hash) -> None:
    """Writes the manifest, the last file of a build."""
    source = plan.paths.source
    manifest = Manifest(
        recipe_name=plan.name,
        recipe=plan.recipe,
        builder=Builder(
            crossover=version("crossover"),
            tensorrt_llm=facts.tensorrt_llm or plan.recipe.release,
            tensorrt=facts.tensorrt,
            image=plan.place.image if isinstance(plan.place, Container) else None,
            capability=facts.capability,
            gpu_name=facts.gpu_name,
            driver=facts.driver,
        ),
        source=Source(
            path=str(source),
            sha256=hash_weights(source, hash_one),
            tokenizer_sha256=hash_present(source, TOKENIZER, hash_one),
            chat_template_sha256=hash_present(source, TEMPLATE, hash_one),
            eos_ids=read_checkpoint(source).eos_ids,
        ),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(build_s, 1),
        commands=tuple(step.argv for step in plan.steps),
        serve=plan.serve,
        files=mark_files(plan.paths.engine, hash_one),
    )
    write_manifest(plan.paths.engine, manifest)


def _run(step: Step) -> None:
    try:
        # A group of its own: a build has workers, and they must not outlive it.
        child = subprocess.Popen(step.argv, process_group=0)
    except OSError as exc:
        raise StepFailed(f"{step.purpose}: cannot run {step.argv[0]}: {exc.strerror}") from exc
    try:
        code = child.wait()
    except KeyboardInterrupt:
        _end(child)
        raise
    if code:
        raise StepFailed(f"{step.purpose}: {step.argv[0]} ended with {_describe_code(code)}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the step by SIGTERM first: Docker's client passes it on to the container, which outlives a killed client."""
    _signal_group(child.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    _signal_group(child.pid, signal.SIGKILL)  # also workers that outlive it
    child.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _describe_code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _name_folders(recipe: Recipe) -> list[str]:
    """Other folders of the host that a recipe names: calibration data, draft models, adapters."""
    folders = [recipe.precision.calibration.dataset] if recipe.precision.calibration else []
    if isinstance(recipe.speculative, Eagle | Medusa | Eagle3):
        folders.append(recipe.speculative.draft_model)
    return [*folders, *(recipe.lora.directories if recipe.lora else ())]


def _find_linked(folder: Path) -> set[Path]:
    """Finds the folders of linked files, as in Hugging Face's cache: a container without them has dead links."""
    links = (path for path in folder.iterdir() if path.is_symlink()) if folder.is_dir() else ()
    return {link.resolve().parent for link in links} - {folder}


def _name_outputs(recipe: Recipe, paths: Paths) -> tuple[Path, ...]:
    return (paths.engine, paths.converted) if isinstance(recipe, CompiledRecipe) else (paths.engine,)
