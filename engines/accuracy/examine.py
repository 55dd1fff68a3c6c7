"""One item, asked of both endpoints: what each made of it, and how far their tokens are apart.

In: an item and two endpoints that have been met. Out: a Compared. Raises CannotMeasure with the item's name.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.accuracy.endpoint import Endpoint
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Answer, Choice, Item
from engines.accuracy.rows import Agreement, Divergence, Row, agree, diverge
from engines.accuracy.wire import Written


@dataclass(frozen=True, slots=True)
class Surprisal:
    """Of a right answer: how unlikely the model finds it, in nats, and its tokens."""

    nats: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one endpoint made of an item. `answer`: None where nothing was extracted."""

    answer: str | None
    is_right: bool
    completion_tokens: int
    surprisal: Surprisal | None


@dataclass(frozen=True, slots=True)
class Compared:
    """`divergence`: over A's greedy answer. `floor`: A's from itself, as it wrote and as it reads what it wrote."""

    item: str
    task: str
    a: Outcome
    b: Outcome
    agreement: Agreement | None = None
    divergence: Divergence | None = None
    floor: Divergence | None = None


async def examine_all(
    items: Sequence[Item], a: Endpoint, b: Endpoint, in_flight: int, done: Callable[[Compared], None]
) -> list[Compared]:
    """In the items' order; `done` hears of each as it is finished, in any order. `in_flight`: items at a time."""
    found: dict[int, Compared] = {}
    waiting = iter(enumerate(items))

    async def work() -> None:
        for place, item in waiting:
            found[place] = await examine(item, a, b)
            done(found[place])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(in_flight, len(items))):
                group.create_task(work())
    except* CannotMeasure as failures:
        raise _first(failures) from None
    return [found[place] for place in range(len(items))]


def _first(failures: BaseExceptionGroup[CannotMeasure]) -> CannotMeasure:
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure


async def examine(item: Item, a: Endpoint, b: Endpoint) -> Compared:
    try:
        if isinstance(item.wanted, Choice):
            first, second = [await _choose(endpoint, item, item.wanted) for endpoint in (a, b)]
            return Compared(item.name, item.task, first, second)
        return await _compare(item, item.wanted, a, b)
    except CannotMeasure as exc:
        raise CannotMeasure(f"{item.name}: {exc}") from exc


async def _choose(endpoint: Endpoint, item: Item, choice: Choice) -> Outcome:
    assert isinstance(item.prompt, str)
    scored = [await endpoint.score(item.prompt, text) for text in choice.texts]
    surprisals = [_surprisal(rows) for rows in scored]
    picked = choice.pick([-surprisal.nats for surprisal in surprisals])
    return Outcome(choice.texts[picked], picked == choice.right, 0, surprisals[choice.right])


async def _compare(item: Item, answer: Answer, a: Endpoint, b: Endpoint) -> Compared:
    written = [await endpoint.write(item.prompt, answer) for endpoint in (a, b)]
    first, second = [await _judge(endpoint, item, answer, one) for endpoint, one in zip((a, b), written, strict=True)]
    apart = await _diverge(a, b, written[0])
    return Compared(item.name, item.task, first, second, _agree(*written), *apart)


async def _judge(endpoint: Endpoint, item: Item, answer: Answer, written: Written) -> Outcome:
    read = answer.read(written.text)
    surprisal = None
    # An answer that is extracted from a longer text is no continuation of the prompt; a chat's prompt is not text here.
    if endpoint.abilities.scores and isinstance(item.prompt, str) and answer.extract is None:
        surprisal = _surprisal(await endpoint.score(item.prompt, answer.texts[0]))
    return Outcome(read, answer.accepts(read), written.completion_tokens, surprisal)


def _agree(a: Written, b: Written) -> Agreement | None:
    return None if a.token_ids is None or b.token_ids is None else agree(a.token_ids, b.token_ids)


async def _diverge(a: Endpoint, b: Endpoint, written: Written) -> tuple[Divergence | None, Divergence | None]:
    """B's from A along A's answer, which B is made to read; and A's from itself."""
    if not (a.abilities.scores and b.abilities.scores and written.prompt_ids and written.token_ids):
        return None, None
    read = await a.predict(written.prompt_ids, written.token_ids)
    divergence = diverge(read, await b.predict(written.prompt_ids, written.token_ids))
    return divergence, diverge(written.rows, read) if len(written.rows) == len(read) else None


def _surprisal(rows: Sequence[Row]) -> Surprisal:
    return Surprisal(-math.fsum(row.logprob for row in rows if row.logprob is not None), len(rows))
