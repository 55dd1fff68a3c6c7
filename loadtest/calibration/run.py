"""A whole calibration run: from the folder it begins in to the policy it leaves in force.

In: RunOptions and a Progress. Out: a Result, on disk however the run ends.
"""

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from loadtest.admin import apply_policy, find_system, restore_policy
from loadtest.calibration.campaign import Campaign
from loadtest.calibration.cell_meter import Site
from loadtest.calibration.progress import Progress
from loadtest.calibration.resume import History
from loadtest.client.errors import MeasurementError, Unreachable, Untrusted
from loadtest.client.sender import Sender
from loadtest.client.target import Target
from loadtest.client.worker_pool import worker_pool
from loadtest.decide.cost import NO_COST
from loadtest.decide.regret import Regret, Rule, check_regret
from loadtest.decide.soundness import Check
from loadtest.rehearsal.find_trace import find_trace
from loadtest.rehearsal.outcome import OBJECTIVES, PAGE, find_outcomes, is_decided, read_objective, render_page
from loadtest.rehearsal.rehearse import LIVE, Rehearsal, make_arms, name_alone, warm_up
from loadtest.rehearsal.traces import Pair, TraceRequest, Variant, make_trace
from loadtest.report.command import write_reports
from loadtest.results.folder import Beginning, RunFolder
from loadtest.results.hardware import find_contradiction, list_gpus
from loadtest.results.node import NodeModel
from loadtest.results.plan import Plan
from loadtest.results.result import Result
from loadtest.results.system import Json, confirm_same

REHEARSAL = "rehearsal"  # the folder, within the run's, of what was served after the policy was set
TRACE = Variant("step", length=20.0)  # half as long as a rehearsal of its own has it
T = TypeVar("T")
PolicyKind: TypeAlias = Literal["curve", "threshold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What to run. `resumed`: the run to continue, by its own plan. `folder`: the folder of a new run; None: it is
    created under `out`. `kind`: of the policy that is applied. `processes`: how many processes this client has, this
    one included.
    """

    site: Site
    model: str | None
    plan: Plan
    out: Path
    resumed: RunFolder | None = None
    folder: RunFolder | None = None
    should_apply: bool = False
    kind: PolicyKind = "curve"
    processes: int = 1


async def run(options: RunOptions, progress: Progress) -> Result:
    """Runs a calibration and returns its result. Raises MeasurementError if the run cannot begin."""
    begin = _resume(options, options.resumed, progress) if options.resumed else _begin(options, progress)
    campaign = await begin
    try:
        async with worker_pool(options.processes - 1) as workers:
            campaign.site = replace(campaign.site, workers=workers)
            result = await campaign.run()
            _write(campaign.folder, result)
            result = await _apply(options.site.target, result, options.kind) if options.should_apply else result
            result = await _try_policy(options.site, campaign, result) if result.applied else result
            result = replace(result, duration_s=campaign.elapsed_s)
    except MeasurementError as exc:
        result = campaign.break_off("untrusted" if isinstance(exc, Untrusted) else "failed", str(exc))
    except asyncio.CancelledError:
        _write(campaign.folder, campaign.break_off("interrupted", "interrupted"))
        raise
    _write(campaign.folder, result)
    return result


def _write(folder: RunFolder, result: Result) -> None:
    folder.write_result(result)
    write_reports(folder.path, result)


async def _begin(options: RunOptions, progress: Progress) -> Campaign:
    system = await find_system(options.site.target, options.model)
    now, plan = datetime.now(UTC), options.plan
    if wrong := find_contradiction(plan.hardware or {}, system.engines, system.backends):
        raise Unreachable(f"--hardware: {wrong}")
    if wrong := (plan.cost or NO_COST).find_contradiction(list_gpus(plan.hardware), system.backends):
        raise Unreachable(f"--gpu-count: {wrong}")
    try:
        folder = options.folder or RunFolder.create(options.out)
        folder.begin(Beginning(now, system.model, system.low, system.high, system.engines, plan))
    except OSError as exc:
        raise MeasurementError(f"cannot write to {options.out}: {exc.strerror}") from exc
    return Campaign(options.site, system, plan, folder, progress, now, plan.seed)


async def _resume(options: RunOptions, folder: RunFolder, progress: Progress) -> Campaign:
    """Continues a run with its plan, model and engines. Raises MeasurementError if the engines are others now."""
    begun = folder.read_beginning()
    system = await find_system(options.site.target, begun.model)
    if system.backends != (begun.low, begun.high):
        raise Unreachable(f"the run compares {begun.low} with {begun.high}; the policy now names {system.backends}")
    system = replace(system, engines=confirm_same(begun.engines, system.engines))
    history, seed = History.of(folder.recover(), system.low), secrets.randbits(32)
    return Campaign(options.site, system, begun.plan, folder, progress, begun.started_at, seed, history)


def choose_keys(result: Result, kind: PolicyKind) -> Json | None:
    """Returns the keys of the policy that the result gives; None if it gives none of this kind.

    Where the node model does not fit its own cells, those of the threshold.
    """
    if kind == "curve" and result.node is not None and result.failure is None:
        if result.node.error <= result.plan.limits.unusable:
            return {"node": asdict(result.node)}
    elif kind != "threshold":
        return None
    return {"up": result.threshold.up, "down": result.threshold.down} if result.threshold is not None else None


async def _apply(target: Target, result: Result, kind: PolicyKind) -> Result:
    """Applies the policy, if there is one. Restores the policy where a signal interrupts the change."""
    keys = choose_keys(result, kind)
    if keys is None:
        return result
    applying = asyncio.ensure_future(apply_policy(target, result.system, keys, result.run))
    try:
        return replace(result, applied=await _finish(applying))
    except MeasurementError as exc:
        return replace(result, status="failed", failure=str(exc))
    except asyncio.CancelledError:
        if applying.exception() is None:
            await _finish(restore_policy(target, result.system))
        raise


async def _try_policy(site: Site, campaign: Campaign, result: Result) -> Result:
    """Rehearses the policy just set, if the plan asks for that. Takes it back if it serves worse than one backend."""
    if result.node is None or not result.plan.rehearsals:
        return result
    if site.max_foreign is not None:
        check = Check("regret", "note", "not rehearsed: requests of others may be in flight")
        return replace(result, checks=[*result.checks, check])
    try:
        rehearsed = await _rehearse(campaign, result, result.node)
    except BaseException:  # whatever interrupts it, no policy stays in force that was not tried to the end
        await _finish(restore_policy(site.target, result.system))
        raise
    alone = {name: rehearsed[name_alone(name)] for name in result.system.backends}
    what, _ = OBJECTIVES[read_objective(result.applied)]
    check = check_regret(rehearsed[LIVE], alone, _make_rule(result.plan), what)
    result = replace(result, rehearsed=rehearsed, checks=[*result.checks, check])
    if check.status != "failed":
        return result
    await _finish(restore_policy(site.target, result.system))
    return replace(result, status="regretted", failure=check.message, threshold=None, applied=None)


async def _rehearse(campaign: Campaign, result: Result, node: NodeModel) -> dict[str, Regret]:
    """Serves the plan's trace on either engine alone and with routing live. Returns what it cost, by arm."""
    plan, system, target = result.plan, result.system, campaign.site.target
    name, trace = _find_trace(plan, Pair.of(asdict(node), node.prompt_tokens, plan.tokens))
    arms = make_arms(system, (), None)
    took_s = trace[-1].at * len(arms) * plan.rehearsals
    campaign.progress.note(f"rehearsing a load that changes, alone and with routing live: at most {took_s:.0f} s or so")
    folder = campaign.folder.path / REHEARSAL
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off, by another node model
    folder.mkdir()
    sender = Sender(target, system.model, "", plan.seed, plan.prompt_words, wants_counts=True)
    sender, prompts = await warm_up(sender, system, plan.tokens)
    objective, rule, singles = read_objective(result.applied), _make_rule(plan), list(map(name_alone, system.backends))
    rehearsal = Rehearsal(
        target,
        system,
        sender,
        {name: trace},
        arms,
        rule.most,
        folder,
        prompts,
        lambda servings: is_decided(servings, singles, objective, rule),
    )
    servings = await rehearsal.run()
    outcomes = find_outcomes(servings, singles, objective, rule)
    (folder / PAGE).write_text(render_page(result.run, system.backends, outcomes, servings, objective))
    return {outcome.arm: outcome.regret for outcome in outcomes}


def _make_rule(plan: Plan) -> Rule:
    return Rule(plan.limits.regret, plan.rehearsals)


def _find_trace(plan: Plan, pair: Pair) -> tuple[str, Sequence[TraceRequest]]:
    if plan.trace is None:
        return TRACE.name, make_trace(TRACE, pair, plan.seed)
    try:
        return plan.trace, find_trace(plan.trace, pair, plan.seed)
    except ValueError as exc:  # a file may have changed since the run began
        raise Unreachable(str(exc)) from exc


async def _finish(setting: Awaitable[T]) -> T:
    """Waits until `setting` ends, also when cancelled meanwhile: the gateway may have taken the new policy already."""
    task = asyncio.ensure_future(setting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
