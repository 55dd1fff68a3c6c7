"""The output of `crossover engine`: a recipe in a line, a plan as a shell script, findings with their cures.

In: recipes, plans, findings. Out: lines of text. Decides nothing.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from engines.building import Plan
from engines.directory.checks import Finding
from engines.recipes.recipe import CompiledRecipe, Recipe, TorchRecipe
from engines.trtllm.llm_args import dump_llm_args, make_llm_args
from engines.trtllm.steps import show_command
from engines.trtllm.torch_flow import LLM_ARGS, serve_command


def summarize(recipe: Recipe) -> str:
    split = f"tp {recipe.parallel.tp}" + (f" pp {recipe.parallel.pp}" if recipe.parallel.pp > 1 else "")
    precision = f"{recipe.precision.weights} weights, {recipe.precision.kv_cache} KV cache"
    drafts = f", {recipe.speculative.kind}" if recipe.speculative else ""
    return f"{recipe.flow:<9} {recipe.gpus.architecture:<10} {split:<10} {precision}{drafts}"


def show_plan(plan: Plan) -> Iterator[str]:
    """Yields the plan as a shell script: everything but the commands is in comments."""
    yield f"{show_command(('mkdir', '-p', *map(str, plan.folders)))}\n"
    for index, step in enumerate(plan.steps, start=1):
        yield f"# {index}. {step.purpose}"
        yield f"{show_command(step.argv)}\n"
    if isinstance(plan.recipe, CompiledRecipe):
        yield f"# then {plan.paths.engine} is compared with the recipe, and its manifest written"
    else:
        yield from _show_serving(plan, plan.recipe)


def _show_serving(plan: Plan, recipe: TorchRecipe) -> Iterator[str]:
    yield f"# {len(plan.steps) + 1}. write {plan.paths.engine / LLM_ARGS}:"
    yield from (f"#    {line}" for line in dump_llm_args(make_llm_args(recipe)).splitlines())
    yield "\n# to serve it, where TensorRT-LLM is installed:"
    yield from (f"# {line}" for line in show_command(serve_command(recipe, plan.paths)).splitlines())


def describe_next(plan: Plan) -> str:
    if plan.serve is not None:
        return f"serve it with:\n{show_command(plan.serve)}"
    return f"for Triton: crossover engine render {plan.name} --engine {plan.paths.engine} --out MODEL_REPOSITORY"


def show_findings(findings: Iterable[Finding]) -> Iterator[str]:
    for cure, cured in groupby(findings, key=lambda finding: finding.cure):
        for finding in cured:
            yield f"refused  {finding.field}: {finding.problem}"
        yield f"   cure  {cure}"
