"""One run: both endpoints are probed, every item is asked of both, and the findings are put together.

In: options and items. Out: a Result; each item goes to the folder as it is finished. Raises CannotMeasure.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx

from engines.accuracy.comparison import Comparison, Outcome, compare_all
from engines.accuracy.cost import Cost, Saving, count_cost, count_saving
from engines.accuracy.endpoint import Address, Endpoint
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.findings import SCORE, Allowed, Findings, find
from engines.accuracy.items import Choice, Item
from engines.accuracy.result import Folder, Result, Subject, Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line's options, as cli.py describes them. `cost_a` and `cost_b`: money per million tokens."""

    a: str
    b: str
    url: str
    key: str | None
    key_a: str | None
    key_b: str | None
    model: str | None
    model_a: str | None
    model_b: str | None
    tasks: str
    max_items: int | None
    only: tuple[str, ...]
    skip: tuple[str, ...]
    in_flight: int
    top: int
    points: float
    surprisal: float
    divergence: float | None
    confidence: float
    must_rule_out: bool
    cost_a: float | None
    cost_b: float | None
    out: Path
    as_json: bool

    @property
    def addresses(self) -> tuple[Address, Address]:
        """A URL is an endpoint; any other word is a backend of the gateway at --url. Only the gateway gets --key."""
        return (
            self._find_address("A", self.a, self.key_a, self.model_a or self.model),
            self._find_address("B", self.b, self.key_b, self.model_b or self.model),
        )

    def _find_address(self, name: str, where: str, key: str | None, model: str | None) -> Address:
        if "://" in where:
            return Address(name, where, model, None, key)
        return Address(name, self.url, model, where, self.key)


async def run(options: Options, items: Sequence[Item], folder: Folder, on_item: Callable[[], None]) -> Result:
    began, started_at = time.monotonic(), datetime.now(UTC)

    def keep(one: Comparison) -> None:
        folder.append(one)
        on_item()

    # A proxy of the environment would stand between the endpoints and the measurement.
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=options.in_flight), trust_env=False) as client:
        a, b = (Endpoint(client, address, folder.path.name, options.top) for address in options.addresses)
        await _probe(a, b, items)
        compared = await compare_all(items, a, b, options.in_flight, keep)
    allowed = Allowed(options.points, options.surprisal, options.divergence)
    findings = find(compared, allowed, options.confidence)
    # Of the items' meaning: two files that differ in white space only have the same digest.
    digest = hashlib.sha256(repr(items).encode()).hexdigest()
    return Result(
        run=folder.path.name,
        started_at=f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
        duration_s=time.monotonic() - began,
        a=_describe(a, options.cost_a, [one.a for one in compared]),
        b=_describe(b, options.cost_b, [one.b for one in compared]),
        tasks=Tasks(options.tasks, digest, len(items)),
        confidence=options.confidence,
        must_rule_out=options.must_rule_out,
        saving=_count_saving(options, findings),
        findings=findings,
    )


async def _probe(a: Endpoint, b: Endpoint, items: Sequence[Item]) -> None:
    await a.probe()
    await b.probe()
    names_ids = a.abilities.names_ids and b.abilities.names_ids
    for endpoint in (a, b):
        endpoint.limit(names_ids)
        _check_choices(endpoint, items)


def _check_choices(endpoint: Endpoint, items: Sequence[Item]) -> None:
    """Raises CannotMeasure for a task that cannot be asked: none is left out in silence, the user skips it by name."""
    tasks = sorted({item.task for item in items if isinstance(item.wanted, Choice)})
    if tasks and not endpoint.abilities.scores:
        reason = endpoint.abilities.refusal or "it accepts echo and logprobs, and returns none"
        skip = " ".join(f"--skip {task}" for task in tasks)
        raise CannotMeasure(
            f"{endpoint.address.name} returns no log-probabilities of a prompt, by which choices are compared "
            f"({reason}). Leave them out with {skip}, or have the answers written"
        )


def _describe(endpoint: Endpoint, price: float | None, outcomes: Sequence[Outcome]) -> Subject:
    cost = None if price is None else _count_cost(price, [one for one in outcomes if one.completion_tokens])
    return Subject(str(endpoint.address), endpoint.model, endpoint.abilities.refusal, cost)


def _count_cost(price: float, written: Sequence[Outcome]) -> Cost:
    return count_cost(price, sum(one.completion_tokens for one in written), sum(one.is_right for one in written))


def _count_saving(options: Options, findings: Findings) -> Saving | None:
    if options.cost_a is None or options.cost_b is None:
        return None
    lost = next(one.interval for one in findings.judged if one.measure == SCORE and one.task is None)
    return count_saving(options.cost_a, options.cost_b, lost.point, lost.high)
