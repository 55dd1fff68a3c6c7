"""Items asked of both endpoints: what each answered, and how far their tokens are apart.

In: items and two endpoints that have been probed. Out: a Comparison each. Raises CannotMeasure with the item's name.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.accuracy.divergence import Agreement, Divergence, ScoredToken, count_equal, measure_divergence
from engines.accuracy.endpoint import Endpoint
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Choice, FreeText, Item
from engines.accuracy.wire import Generated


@dataclass(frozen=True, slots=True)
class Surprisal:
    """The negative log-probability of a right answer, in nats, and the number of its tokens."""

    nats: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One endpoint's answer to an item. `answer`: None where nothing was extracted."""

    answer: str | None
    is_right: bool
    completion_tokens: int
    surprisal: Surprisal | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One item's outcomes. `divergence`: B's along A's greedy answer. `floor`: A's own between writing and reading."""

    item: str
    task: str
    a: Outcome
    b: Outcome
    agreement: Agreement | None = None
    divergence: Divergence | None = None
    floor: Divergence | None = None


async def compare_all(
    items: Sequence[Item], a: Endpoint, b: Endpoint, in_flight: int, on_item: Callable[[Comparison], None]
) -> list[Comparison]:
    """Returns all in the items' order; `on_item` receives each once done, in any order. `in_flight`: items at once."""
    found: dict[int, Comparison] = {}
    waiting = iter(enumerate(items))

    async def work() -> None:
        for place, item in waiting:
            found[place] = await compare(item, a, b)
            on_item(found[place])

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


async def compare(item: Item, a: Endpoint, b: Endpoint) -> Comparison:
    try:
        if isinstance(item.wanted, Choice):
            first, second = [await _choose(endpoint, item, item.wanted) for endpoint in (a, b)]
            return Comparison(item.name, item.task, first, second)
        return await _compare_texts(item, item.wanted, a, b)
    except CannotMeasure as exc:
        raise CannotMeasure(f"{item.name}: {exc}") from exc


async def _choose(endpoint: Endpoint, item: Item, choice: Choice) -> Outcome:
    assert isinstance(item.prompt, str)
    surprisals = [_sum_surprisal(await endpoint.score(item.prompt, text)) for text in choice.texts]
    picked = choice.pick([-surprisal.nats for surprisal in surprisals])
    return Outcome(choice.texts[picked], picked == choice.right, 0, surprisals[choice.right])


async def _compare_texts(item: Item, wanted: FreeText, a: Endpoint, b: Endpoint) -> Comparison:
    of_a, of_b = [await endpoint.generate(item.prompt, wanted) for endpoint in (a, b)]
    first, second = await _judge(a, item, wanted, of_a), await _judge(b, item, wanted, of_b)
    return Comparison(item.name, item.task, first, second, _agree(of_a, of_b), *await _diverge(a, b, of_a))


async def _judge(endpoint: Endpoint, item: Item, wanted: FreeText, generated: Generated) -> Outcome:
    answer = wanted.read(generated.text)
    surprisal = None
    # An answer that is extracted from a longer text is no continuation of the prompt; a chat's prompt is not text here.
    if endpoint.abilities.scores and isinstance(item.prompt, str) and wanted.extract is None:
        surprisal = _sum_surprisal(await endpoint.score(item.prompt, wanted.texts[0]))
    return Outcome(answer, wanted.accepts(answer), generated.completion_tokens, surprisal)


def _agree(a: Generated, b: Generated) -> Agreement | None:
    return None if a.token_ids is None or b.token_ids is None else count_equal(a.token_ids, b.token_ids)


async def _diverge(a: Endpoint, b: Endpoint, generated: Generated) -> tuple[Divergence | None, Divergence | None]:
    """Returns B's divergence from A along A's answer, which both read, and A's own between writing and reading it."""
    if not (a.abilities.scores and b.abilities.scores and generated.prompt_ids and generated.token_ids):
        return None, None
    read = await a.predict(generated.prompt_ids, generated.token_ids)
    divergence = measure_divergence(read, await b.predict(generated.prompt_ids, generated.token_ids))
    has_floor = len(generated.tokens) == len(read)
    return divergence, measure_divergence(generated.tokens, read) if has_floor else None


def _sum_surprisal(tokens: Sequence[ScoredToken]) -> Surprisal:
    return Surprisal(-math.fsum(token.logprob for token in tokens if token.logprob is not None), len(tokens))
