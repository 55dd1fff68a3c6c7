"""`crossover engine build|verify|inspect|render|recipes`: engines built from checkpoints by recipes, and checked.

In: a recipe, folders. Out: commands and tables on stdout, problems on stderr, an exit code.
"""

import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click
import orjson

from engines.building import Plan, StepFailed, finish, make_paths, make_place, prepare_folders, run_steps
from engines.directory.checkpoint import NotACheckpoint, find_misfits, read_checkpoint
from engines.directory.checks import Finding, check_plan, list_unknown
from engines.directory.engine_config import NotAnEngine
from engines.directory.inspection import inspect_directory, show_inspection
from engines.directory.manifest import Manifest, find_manifest, hash_file
from engines.directory.node import NodeFacts, detect
from engines.directory.verify import Question, check_result, find_mismatches, skip_hashes
from engines.engine_text import describe_next, show_findings, show_plan, summarize
from engines.recipes.load import RecipeError, find_recipe, list_recipes, load_recipe
from engines.recipes.recipe import CompiledRecipe, Recipe
from engines.trtllm.release import EXAMPLES, IMAGE, OPTIMIZER, OPTIMIZER_EXAMPLES, OPTIMIZER_TAG
from engines.trtllm.steps import Container, Host
from engines.trtllm.torch_flow import HF_PTQ
from engines.trtllm.triton_config import RenderError, render_config

FOLDER = click.Path(file_okay=False, path_type=Path)


class Refused(click.ClickException):
    """The command ran, and something does not fit or a step failed."""

    exit_code = 1


class NotTried(click.ClickException):
    """The command could not be tried: a recipe that cannot be used, a folder that holds something else."""

    exit_code = 2


class EngineGroup(click.Group):
    """Ends a command with exit code 2 where a file or a folder that it names cannot be used."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (NotACheckpoint, NotAnEngine, RenderError) as exc:
            raise NotTried(str(exc)) from exc
        except OSError as exc:
            if exc.filename is None:
                raise
            raise NotTried(f"{exc.filename}: {exc.strerror}") from exc


@click.group(cls=EngineGroup)
def engine() -> None:
    """Build TensorRT-LLM engines from recipes, and check that an engine fits the node that is to serve it.

    \b
    Examples:
      crossover engine recipes
      crossover engine build llama-3.1-8b-fp8-tp1 --checkpoint /models/llama-3.1-8b --out /engines/llama-fp8 --dry-run
      crossover engine verify /engines/llama-fp8

    Exit codes: 0 done; 1 refused, or a step failed; 2 it could not be tried.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    recipe_name: str
    checkpoint: Path | None
    out: Path | None
    image: str | None
    on_host: bool
    gpu_ids: tuple[int, ...]
    examples: Path | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    directory: Path
    recipe_name: str | None
    checkpoint: Path | None
    repository: Path | None
    image: str | None
    trtllm_version: str | None
    tensorrt_version: str | None
    compute_capability: str | None
    gpus: int | None
    quick: bool
    as_json: bool


def _parse_gpu_ids(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise click.BadParameter("must be numbers with commas between them, like 0,1")
    return tuple(map(int, text.split(",")))


@engine.command()
@click.argument("recipe_name", metavar="RECIPE")
@click.option("--checkpoint", type=FOLDER, help="The Hugging Face checkpoint.  [default: /models/<model.name>]")
@click.option("--out", type=FOLDER, help="Where the engine goes; new or empty.  [default: /engines/<recipe>]")
@click.option("--container", "image", metavar="IMAGE", help=f"Run the steps in this image, like {IMAGE}.")
@click.option("--host", "on_host", is_flag=True, help="Run the steps here, beside TensorRT-LLM. This is the default.")
@click.option("--gpu-ids", metavar="0,1", callback=_parse_gpu_ids, help="Only these GPUs, as nvidia-smi numbers them.")
@click.option(
    "--examples",
    type=FOLDER,
    help="TensorRT-LLM's examples; for the PyTorch flow Model Optimizer's.  "
    f"[default: {EXAMPLES}; {OPTIMIZER_EXAMPLES}]",
)
@click.option("--dry-run", is_flag=True, help="Print the commands as a shell takes them, and run none.")
def build(**values: Any) -> None:  # Any: click's; BuildOptions gives the types
    """Build an engine by RECIPE: a file, or the name of a recipe that `crossover engine recipes` lists.

    Checkpoint and node are checked first, then every command runs with its output shown, then the result is compared
    with the recipe. The manifest is written last. The first problem ends the build.

    \b
    Examples:
      crossover engine build llama-3.1-8b-fp8-tp1 --dry-run
      crossover engine build mine.yaml --checkpoint /models/llama --out /engines/llama --container IMAGE

    Exit codes: 0 built, or printed; 1 the node or the result does not fit, or a step failed; 2 it could not be tried.
    """
    options = BuildOptions(**values)
    plan = _make_plan(options)
    _check_checkpoint(plan, is_needed=not options.dry_run)
    if options.dry_run:
        _echo(show_plan(plan))
        return
    _check_out(plan.paths.engine)
    _check_optimizer(plan)
    facts = _find_node(options)
    if plan.steps and facts.tensorrt_llm is None:
        raise NotTried(f"TensorRT-LLM is not installed here: --container {IMAGE}, or build where it is")
    _refuse("this node does not fit the recipe", check_plan(plan.recipe, facts))
    _run(plan, facts)


@engine.command()
@click.argument("directory", type=FOLDER, metavar="DIR")
@click.option(
    "--recipe", "recipe_name", metavar="RECIPE", help="Compare it with this recipe, not the one it was built by."
)
@click.option("--checkpoint", type=FOLDER, help="Also check that it was built from this checkpoint.")
@click.option("--repository", type=FOLDER, help="Also compare this model repository's config.pbtxt.")
@click.option("--container", "image", metavar="IMAGE", help="The versions are those in this image.")
@click.option("--trtllm-version", help="Of the TensorRT-LLM that serves.  [default: as installed]")
@click.option("--tensorrt-version", help="Of the TensorRT beside it.  [default: as installed]")
@click.option("--compute-capability", metavar="9.0", help="Of the GPUs that serve.  [default: as nvidia-smi reports]")
@click.option("--gpus", type=click.IntRange(min=0), help="How many there are.  [default: as nvidia-smi reports]")
@click.option("--quick", is_flag=True, help="Compare sizes, do not read the files to hash them.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def verify(**values: Any) -> None:  # Any: click's; VerifyOptions gives the types
    """Check that the engine in DIR is whole, fits its recipe, and fits the node that is to serve it.

    Every mismatch is printed with what to rebuild and why. Facts of the node that are unknown are listed as such.

    \b
    Examples:
      crossover engine verify /engines/llama-fp8
      crossover engine verify /engines/llama-fp8 --recipe llama-3.1-8b-fp8-tp2 --compute-capability 9.0 --gpus 4

    Exit codes: 0 it fits; 1 refused; 2 it could not be tried.
    """
    options = VerifyOptions(**values)
    if not options.directory.is_dir():
        raise NotTried(f"{options.directory}: not a directory")
    if options.quick and options.checkpoint is not None:
        raise click.UsageError("--quick reads no file, and --checkpoint needs them read")
    manifest, facts = find_manifest(options.directory), _find_facts(options)
    findings = _verify(options, facts, manifest)
    unknown = [] if manifest is None else list_unknown(manifest.recipe, facts)
    if options.as_json:
        document = {"findings": [asdict(finding) for finding in findings], "not_compared": unknown}
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        _echo(show_findings(findings))
        if unknown:
            click.echo(f"not compared, for it is unknown here: {', '.join(unknown)}", err=True)
        if not findings:
            click.echo(f"{options.directory} fits")
    raise SystemExit(1 if findings else 0)


@engine.command()
@click.argument("directory", type=FOLDER, metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(directory: Path, as_json: bool) -> None:
    """Print limits, precision, split, versions and origin of the engine in DIR.

    \b
    Example:
      crossover engine inspect /engines/llama-fp8

    Exit codes: 0 printed; 2 there is no engine.
    """
    document = inspect_directory(directory)
    if as_json:
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    else:
        _echo(show_inspection(document))


@engine.command()
@click.argument("recipe_name", metavar="RECIPE")
@click.option("--engine", "engine_dir", type=FOLDER, required=True, help="The engine, where Triton will see it.")
@click.option("--out", type=FOLDER, required=True, help="The model repository to write into.")
@click.option("--tokenizer", type=FOLDER, help="For tokenizer_dir, which the C++ backend reads and does not use.")
def render(recipe_name: str, engine_dir: Path, out: Path, tokenizer: Path | None) -> None:
    """Write OUT/tensorrt_llm/config.pbtxt for Triton's C++ backend, from RECIPE alone.

    A placeholder without a value and a value without a placeholder are errors, and the text is parsed as Triton would.

    \b
    Example:
      crossover engine render llama-3.1-8b-fp8-tp1 --engine /engines/llama-fp8 --out /models/triton

    Exit codes: 0 written; 2 the recipe is not of the compiled flow, or a path is not absolute.
    """
    recipe = _load(recipe_name)
    if not isinstance(recipe, CompiledRecipe):
        raise NotTried("this recipe is of the pytorch flow: model_repo/python serves it, or trtllm-serve")
    if not engine_dir.is_absolute():
        raise NotTried(f"--engine: {engine_dir} must be an absolute path, Triton starts elsewhere")
    click.echo(_write_model(out / "tensorrt_llm", render_config(recipe, engine_dir, tokenizer)))


@engine.command()
@click.argument("recipe_name", metavar="[RECIPE]", required=False)
def recipes(recipe_name: str | None) -> None:
    """List the recipes that come with Crossover, or print one as a beginning of your own.

    \b
    Examples:
      crossover engine recipes
      crossover engine recipes llama-3.1-8b-fp8-tp1 > mine.yaml

    Exit codes: 0 printed; 2 there is no such recipe.
    """
    if recipe_name is not None:
        _load(recipe_name)
        click.echo(find_recipe(recipe_name).read_text(), nl=False)
        return
    for name in list_recipes():
        click.echo(f"{name:<32} {summarize(_load(name))}")


def _write_model(model: Path, text: str) -> Path:
    (model / "1").mkdir(parents=True, exist_ok=True)  # Triton takes no model without a version
    config = model / "config.pbtxt"
    config.write_text(text)
    return config


def _load(name: str) -> Recipe:
    try:
        return load_recipe(find_recipe(name))
    except RecipeError as exc:
        raise NotTried(
            f"the recipe {name} cannot be used:\n" + "\n".join(f"  {line}" for line in exc.problems)
        ) from exc


def _make_plan(options: BuildOptions) -> Plan:
    if options.image is not None and options.on_host:
        raise click.UsageError("--container and --host exclude each other")
    recipe = _load(options.recipe_name)
    source = (options.checkpoint or Path("/models") / recipe.model.name).absolute()
    out = (options.out or Path("/engines") / find_recipe(options.recipe_name).stem).absolute()
    paths = make_paths(recipe, source, out, options.examples and options.examples.absolute())
    return Plan(options.recipe_name, recipe, paths, make_place(recipe, paths, options.image, options.gpu_ids))


def _check_checkpoint(plan: Plan, *, is_needed: bool) -> None:
    if not is_needed and not plan.paths.source.is_dir():
        return
    if misfits := list(find_misfits(plan.recipe, read_checkpoint(plan.paths.source))):
        raise Refused("the recipe does not fit the checkpoint:\n" + "\n".join(f"  {line}" for line in misfits))


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise NotTried(f"--out: {out} is not empty; files there would count as parts of the engine")


def _check_optimizer(plan: Plan) -> None:
    """Raises NotTried if Model Optimizer's examples are needed and missing: TensorRT-LLM's images hold only its own."""
    program = plan.paths.examples / HF_PTQ
    if plan.steps and not isinstance(plan.recipe, CompiledRecipe) and not program.is_file():
        clone = f"git clone --branch {OPTIMIZER_TAG} {OPTIMIZER} {Path(OPTIMIZER_EXAMPLES).parent}"
        raise NotTried(f"--examples: {program} quantizes for this flow, and is missing: {clone}")


def _find_node(options: BuildOptions) -> NodeFacts:
    """Returns the node's facts; GPUs that --gpu-ids leaves out do not count."""
    facts = _detect(options.image)
    return replace(facts, gpu_count=len(options.gpu_ids)) if options.gpu_ids else facts


def _detect(image: str | None) -> NodeFacts:
    """Detects the node's facts. An image runs without a step's mounts: Docker would make their folders for root."""
    if image is None:
        return detect(Host())
    _report(f"looking up what {image} has installed")
    facts = detect(Container(image))
    if facts.tensorrt_llm is None:
        raise NotTried(f"--container: {image} has no TensorRT-LLM; does `docker run {image} python3` work here?")
    return facts


def _run(plan: Plan, facts: NodeFacts) -> None:
    try:
        prepare_folders(plan)
        with _interrupted_by_sigterm():
            build_s = run_steps(plan.steps, _report)
        _refuse("the build differs from the recipe", check_result(plan.paths.engine, plan.recipe, plan.cure))
        finish(plan, facts, build_s, _hash_aloud)
    except StepFailed as exc:
        raise Refused(f"{exc}; nothing after it ran, and {plan.paths.engine} has no manifest") from exc
    click.echo(f"built {plan.paths.engine}")
    click.echo(describe_next(plan))


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a build and all its processes, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt  # and no SIGINT: a process that a shell starts in the background ignores that

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _report(line: str) -> None:
    click.echo(f"==> {line}", err=True)


def _hash_aloud(path: Path) -> str:
    """Hashes a file, and names it on a terminal, where a user waits for gigabytes to be read."""
    if sys.stderr.isatty():
        _report(f"reading {path}")
    return hash_file(path)


def _refuse(reason: str, findings: Iterable[Finding]) -> None:
    found = list(findings)
    if found:
        _echo(show_findings(found))
        raise Refused(reason)


def _find_facts(options: VerifyOptions) -> NodeFacts:
    """Returns the facts that the options give; where an option is missing, the fact found here."""
    found = _detect(options.image)
    return replace(
        found,
        tensorrt_llm=options.trtllm_version or found.tensorrt_llm,
        tensorrt=options.tensorrt_version or found.tensorrt,
        capability=options.compute_capability or found.capability,
        gpu_count=found.gpu_count if options.gpus is None else options.gpus,
    )


def _verify(options: VerifyOptions, facts: NodeFacts, manifest: Manifest | None) -> list[Finding]:
    question = _make_question(options, facts, manifest)
    hash_one = skip_hashes(options.directory, manifest.files) if options.quick and manifest else _hash_aloud
    return list(find_mismatches(question, hash_one))


def _make_question(options: VerifyOptions, facts: NodeFacts, manifest: Manifest | None) -> Question:
    return Question(
        options.directory,
        facts,
        name=options.recipe_name or (manifest.recipe_name if manifest else "RECIPE"),
        source=str(options.checkpoint or (manifest.source.path if manifest else "CHECKPOINT")),
        recipe=_load(options.recipe_name) if options.recipe_name else None,
        checkpoint=options.checkpoint,
        repository=options.repository,
    )
