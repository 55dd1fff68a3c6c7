"""A whole calibration run: from the folder it begins in to the policy it leaves in force.

In: an Order and a screen. Out: a Result, on disk however the run ends.
"""

import asyncio
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from loadtest.calibration import Calibration
from loadtest.cost import NO_COST, find_flaw
from loadtest.crew import crew
from loadtest.engines import confirm_same
from loadtest.errors import CalibrationError, Unreachable, Untrusted
from loadtest.folder import Beginning, RunFolder
from loadtest.hardware import find_contradiction
from loadtest.history import History
from loadtest.plan import Plan
from loadtest.result import Result
from loadtest.screen import Screen
from loadtest.subject import apply_threshold, find_subject, restore_policy
from loadtest.target import Target

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to measure, and where. `begun`: the run to go on with, by its own plan. `place`: where a new one is to
    begin; None gives it a name under `out`. `processes`: of this client's.
    `exporter`: DCGM's.
    """

    target: Target
    model: str | None
    plan: Plan
    out: Path
    begun: RunFolder | None = None
    place: RunFolder | None = None
    should_apply: bool = False
    max_foreign: int | None = None
    processes: int = 1
    exporter: Target | None = None


async def run(order: Order, screen: Screen) -> Result:
    """Raises CalibrationError if it cannot even begin."""
    calibration = await (_resume(order, order.begun, screen) if order.begun else _begin(order, screen))
    calibration.max_foreign, calibration.exporter = order.max_foreign, order.exporter
    try:
        async with crew(order.processes - 1) as calibration.helpers:
            result = await calibration.run()
            calibration.folder.write(result)
            result = await _apply(order.target, result) if order.should_apply else result
            result = await _confirm(order.target, calibration, result) if result.applied else result
    except CalibrationError as exc:
        result = calibration.break_off("untrusted" if isinstance(exc, Untrusted) else "failed", str(exc))
    except asyncio.CancelledError:
        calibration.folder.write(calibration.break_off("interrupted", "interrupted"))
        raise
    calibration.folder.write(result)
    return result


async def _begin(order: Order, screen: Screen) -> Calibration:
    subject = await find_subject(order.target, order.model)
    now, plan = datetime.now(UTC), order.plan
    if wrong := find_contradiction(plan.hardware or {}, subject.engines, subject.backends):
        raise Unreachable(f"--hardware: {wrong}")
    if flaw := find_flaw(plan.cost or NO_COST, plan.hardware or {}, subject.backends):
        raise Unreachable(f"--gpu-count: {flaw}")
    try:
        folder = order.place or RunFolder.create(order.out)
        folder.begin(Beginning(now, subject.model, subject.low, subject.high, subject.engines, plan))
    except OSError as exc:
        raise CalibrationError(f"cannot write to {order.out}: {exc.strerror}") from exc
    return Calibration(order.target, subject, plan, folder, screen, now, plan.seed)


async def _resume(order: Order, folder: RunFolder, screen: Screen) -> Calibration:
    """With the plan, the model and the engines it was begun with. Raises CalibrationError if they are others now."""
    begun = folder.read_beginning()
    subject = await find_subject(order.target, begun.model)
    if subject.backends != (begun.low, begun.high):
        raise Unreachable(f"the run compares {begun.low} with {begun.high}; the policy now names {subject.backends}")
    subject = replace(subject, engines=confirm_same(begun.engines, subject.engines))
    history = History.of(folder.recover(), subject.low)
    return Calibration(
        order.target, subject, begun.plan, folder, screen, begun.started_at, secrets.randbits(32), history
    )


async def _apply(target: Target, result: Result) -> Result:
    """With no threshold to apply, nothing is: the policy stays as it is. So it does where a signal breaks it off."""
    if result.threshold is None:
        return result
    applying = asyncio.ensure_future(apply_threshold(target, result.subject, result.threshold, result.run))
    try:
        return replace(result, applied=await _finish(applying))
    except CalibrationError as exc:
        return replace(result, status="failed", failure=str(exc))
    except asyncio.CancelledError:
        if applying.exception() is None:
            await _finish(restore_policy(target, result.subject))
        raise


async def _confirm(target: Target, calibration: Calibration, result: Result) -> Result:
    """With routing live, where the plan has time for that; a policy that is worse than no policy is taken back."""
    change = result.finding.change if result.finding else None
    if result.threshold is None or change is None or not result.plan.regret_repeats:
        return result
    try:
        losses, check = await calibration.check_regret(result.threshold, change.point)
    except BaseException:  # whoever breaks it off leaves no policy behind that nobody has tried
        await _finish(restore_policy(target, result.subject))
        raise
    result = replace(result, losses=losses, checks=[*result.checks, check])
    if check.status != "failed":
        return result
    await _finish(restore_policy(target, result.subject))
    return replace(result, status="regretted", failure=check.message, threshold=None, applied=None)


async def _finish(setting: Awaitable[T]) -> T:
    """To its end, also when we are told to stop meanwhile: the gateway may have it, whatever it was about to answer."""
    task = asyncio.ensure_future(setting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
