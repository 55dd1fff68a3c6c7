"""A run: two endpoints met, every item asked of both, what was found put together.

In: an Order. Out: a Result; items go to the folder and the screen as they are finished. Raises CannotMeasure.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import httpx

from engines.accuracy.cost import Cost, Saving, count_cost, count_saving
from engines.accuracy.endpoint import Endpoint, Place
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.examine import Compared, Outcome, examine_all
from engines.accuracy.findings import SCORE, Allowed, Findings, find
from engines.accuracy.items import Choice, Item
from engines.accuracy.result import Folder, Result, Subject, Tasks


class Screen(Protocol):
    def advance(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be measured. `prices`: money per million tokens of A and of B, where they are known."""

    places: tuple[Place, Place]
    prices: tuple[float | None, float | None]
    tasks: Tasks
    items: Sequence[Item]
    in_flight: int
    top: int
    allowed: Allowed
    confidence: float
    must_rule_out: bool


async def run(order: Order, folder: Folder, screen: Screen) -> Result:
    began, started_at = time.monotonic(), datetime.now(UTC)

    def keep(one: Compared) -> None:
        folder.append(one)
        screen.advance()

    # A proxy of the environment would stand between the endpoints and what is measured of them.
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=order.in_flight), trust_env=False) as client:
        a, b = (Endpoint(client, place, folder.run, order.top) for place in order.places)
        await _meet(a, b, order.items)
        compared = await examine_all(order.items, a, b, order.in_flight, keep)
    findings = find(compared, order.allowed, order.confidence)
    costs = [
        _count_cost(price, [outcome for outcome in side if outcome.completion_tokens])
        for price, side in zip(order.prices, zip(*((one.a, one.b) for one in compared), strict=True), strict=True)
    ]
    return Result(
        run=folder.run,
        started_at=f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
        duration_s=time.monotonic() - began,
        a=Subject(str(a.place), a.model, a.abilities.refusal, costs[0]),
        b=Subject(str(b.place), b.model, b.abilities.refusal, costs[1]),
        tasks=order.tasks,
        confidence=order.confidence,
        must_rule_out=order.must_rule_out,
        saving=_count_saving(order.prices, findings),
        findings=findings,
    )


async def _meet(a: Endpoint, b: Endpoint, items: Sequence[Item]) -> None:
    await a.meet()
    await b.meet()
    names_ids = a.abilities.names_ids and b.abilities.names_ids
    for endpoint in (a, b):
        endpoint.limit(names_ids)
        _check_choices(endpoint, items)


def _check_choices(endpoint: Endpoint, items: Sequence[Item]) -> None:
    """Nothing is left out in silence: a task that cannot be asked ends the run, or is left out by name."""
    tasks = sorted({item.task for item in items if isinstance(item.wanted, Choice)})
    if tasks and not endpoint.abilities.scores:
        reason = endpoint.abilities.refusal or "it takes echo and logprobs, and tells none"
        leave = " ".join(f"--skip {task}" for task in tasks)
        raise CannotMeasure(
            f"{endpoint.place.name} tells no log-probabilities of a prompt, by which choices are compared ({reason}). "
            f"Leave them out with {leave}, or have the answers written"
        )


def _count_cost(price: float | None, outcomes: Sequence[Outcome]) -> Cost | None:
    if price is None:
        return None
    right = sum(outcome.is_right for outcome in outcomes)
    return count_cost(price, sum(outcome.completion_tokens for outcome in outcomes), right)


def _count_saving(prices: tuple[float | None, float | None], findings: Findings) -> Saving | None:
    a, b = prices
    lost = next(one.interval for one in findings.judged if one.measure == SCORE and one.task is None)
    return None if a is None or b is None else count_saving(a, b, lost.point, lost.high)
