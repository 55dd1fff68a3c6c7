"""Reads an engine directory and collects every finding: whether it is whole, as its recipe asks, and fit for this node.

In: a directory, optionally a recipe and a checkpoint, the node's facts. Out: findings, which checks.py makes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.directory import checks
from engines.directory.checkpoint import (
    TEMPLATE,
    TOKENIZER,
    NotACheckpoint,
    hash_present,
    hash_weights,
    read_algorithms,
    read_checkpoint,
)
from engines.directory.checks import Finding, Findings
from engines.directory.engine_config import NotAnEngine, read_engine_config
from engines.directory.manifest import FileMark, Hash, Manifest, NoManifest, mark_files, read_manifest
from engines.directory.node import NodeFacts
from engines.recipes.recipe import CompiledRecipe, Recipe, TorchRecipe
from engines.trtllm.llm_args import LlmArgsError, parse_llm_args
from engines.trtllm.torch_flow import CHECKPOINT, LLM_ARGS
from engines.trtllm.triton_config import RenderError, find_differences, parse_config, render_config


@dataclass(frozen=True, slots=True)
class Question:
    """`recipe`: the one to compare with, by default the manifest's. `name` and `source` are for the cures."""

    directory: Path
    facts: NodeFacts
    name: str
    source: str
    recipe: Recipe | None = None
    checkpoint: Path | None = None
    repository: Path | None = None

    @property
    def rebuild(self) -> str:
        return f"crossover engine build {self.name} --checkpoint {self.source} --out NEW_DIR"

    @property
    def render(self) -> str:
        return f"crossover engine render {self.name} --engine {self.directory.absolute()} --out {self.repository}"


def find_mismatches(question: Question, hash_one: Hash) -> Iterator[Finding]:
    """Yields findings, those that make others moot first. Raises NotACheckpoint, and OSError for unreadable files."""
    try:
        manifest = read_manifest(question.directory)
    except NoManifest as exc:
        yield Finding(
            "manifest", f"{exc}: nothing shows what this was built from, or whether it was finished", question.rebuild
        )
        return
    yield from _check_content(question, manifest)
    yield from checks.check_files(manifest.files, mark_files(question.directory, hash_one), question.rebuild)
    yield from checks.check_node(manifest, question.facts, question.rebuild)
    if question.checkpoint is not None:
        yield from _check_source(question, question.checkpoint, manifest, hash_one)
    if question.repository is not None:
        yield from _check_repository(question, question.repository, question.recipe or manifest.recipe)


def check_result(directory: Path, recipe: Recipe, rebuild: str) -> Findings:
    """Compares a finished build with its recipe: shape, version and every setting, without a manifest."""
    if isinstance(recipe, CompiledRecipe):
        return _check_engine(directory, recipe, rebuild)
    return _check_served(directory, recipe, rebuild)


def skip_hashes(directory: Path, marked: Mapping[str, FileMark]) -> Hash:
    """Returns a Hash for a quick look, which reads no file: a file counts as unchanged if its size is."""
    known = {directory / name: mark.sha256 for name, mark in marked.items()}
    return lambda path: known.get(path, "")


def _check_content(question: Question, manifest: Manifest) -> Findings:
    asked = question.recipe or manifest.recipe
    if asked.flow != manifest.recipe.flow:
        problem = f"this is of the {manifest.recipe.flow} flow, the recipe of the {asked.flow} flow"
        yield Finding("flow", problem, question.rebuild)
        return
    yield from check_result(question.directory, asked, question.rebuild)


def _check_engine(directory: Path, recipe: CompiledRecipe, rebuild: str) -> Findings:
    try:
        config = read_engine_config(directory)
    except NotAnEngine as exc:
        yield Finding("config.json", str(exc), rebuild)
        return
    if config.version != recipe.release:
        problem = f"the engine is of TensorRT-LLM {config.version}, the recipe for {recipe.release}"
        yield Finding("version", problem, f"in the image of {recipe.release}: {rebuild}")
    yield from checks.check_shape(config, frozenset(path.name for path in directory.glob("rank*.engine")), rebuild)
    yield from checks.check_recipe(config, recipe, rebuild)


def _check_served(directory: Path, recipe: TorchRecipe, rebuild: str) -> Findings:
    yield from _check_llm_args(directory, recipe, rebuild)
    if recipe.precision.calibration is None:
        return
    try:
        algorithms = read_algorithms(directory / CHECKPOINT)
    except NotACheckpoint as exc:
        yield Finding(CHECKPOINT, str(exc), rebuild)
    else:
        yield from checks.check_export(algorithms, recipe, rebuild)


def _check_llm_args(directory: Path, recipe: TorchRecipe, rebuild: str) -> Findings:
    path = directory / LLM_ARGS
    try:
        args = parse_llm_args(path.read_text())
    except OSError as exc:
        yield Finding(LLM_ARGS, f"{path}: {exc.strerror}", rebuild)
    except LlmArgsError as exc:
        for line in str(exc).splitlines():
            yield Finding(LLM_ARGS, line, rebuild)
    else:
        yield from checks.check_llm_args(args, recipe, rebuild)


def _check_source(question: Question, checkpoint: Path, manifest: Manifest, hash_one: Hash) -> Findings:
    source, rebuild = manifest.source, question.rebuild
    read_checkpoint(checkpoint)  # raises for a folder that is no checkpoint at all
    if hash_weights(checkpoint, hash_one) != source.sha256:
        problem = f"{checkpoint} holds other weights than those that the engine was built from"
        yield Finding("checkpoint", problem, f"from this checkpoint: {rebuild}")
    if hash_present(checkpoint, TOKENIZER, hash_one) != source.tokenizer_sha256:
        problem = f"{checkpoint} has another tokenizer: ids would mean other words"
        yield Finding("tokenizer", problem, f"give the gateway the tokenizer of {source.path}, or {rebuild}")
    if hash_present(checkpoint, TEMPLATE, hash_one) != source.chat_template_sha256:
        problem = f"{checkpoint} has another chat template than the checkpoint that was built"
        yield Finding("chat_template", problem, f"give the gateway the template of {source.path}")


def _check_repository(question: Question, repository: Path, recipe: Recipe) -> Findings:
    """Compares Triton's configuration with the recipe's; the backend reads a misspelt parameter as its default."""
    if not isinstance(recipe, CompiledRecipe):
        yield Finding("flow", "the C++ backend serves no engine of the pytorch flow", "serve it with model_repo/python")
        return
    path = repository / "tensorrt_llm/config.pbtxt"
    try:
        found = parse_config(path.read_text())
    except OSError as exc:
        yield Finding("config.pbtxt", f"{path}: {exc.strerror}", question.render)
    except RenderError as exc:
        yield Finding("config.pbtxt", f"{path}: {exc}", question.render)
    else:
        tokenizer = found.parameters["tokenizer_dir"].string_value if "tokenizer_dir" in found.parameters else None
        asked = parse_config(render_config(recipe, question.directory, Path(tokenizer) if tokenizer else None))
        for name, has, wanted in find_differences(found, asked):
            yield Finding(f"config.pbtxt {name}", f"is {has}, the recipe makes it {wanted}", question.render)
