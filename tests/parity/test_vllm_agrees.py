"""The table, asked of the gateway and of vLLM's own server before the same engine: field by field one answer.

Where it is not, a row of differences.py has the reason, and each row is seen in a case.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import pytest

from tests.parity.answers import Answer
from tests.parity.asking import VLLM, Asker
from tests.parity.case import Case, Refused, Relayed, Sampled
from tests.parity.cases import BY_NAME, CASES
from tests.parity.compare import ABSENT, Found, find_differences
from tests.parity.differences import ANSWERED_BY_VLLM, DIFFERENCES, NOWHERE, Difference, explain

REFUSED = [case for case in CASES if isinstance(case.expected, Refused)]
ANSWERED = [case for case in CASES if not isinstance(case.expected, Refused | Relayed)]
RELAYED = [case for case in CASES if isinstance(case.expected, Relayed)]
# vLLM 0.32 answers its stream now and then with a 500 whose message is a token id: one that it misses among the
# log-probabilities of another choice. The gateway asks it for one choice at a time.
UNSTEADY = frozenset({"logprobs with the prompts of n"})
COMPARED = [case for case in ANSWERED if case.vllm_refuses is None and case.name not in UNSTEADY]
by_name = attrgetter("name")


@pytest.mark.parametrize("case", COMPARED, ids=by_name)
async def test_the_gateway_and_vllms_server_agree_but_for_the_listed(case: Case, gateway: Asker, server: Asker) -> None:
    ours, theirs = await asyncio.gather(gateway.ask_both_ways(case), server.ask_both_ways(case))
    assert {answer.status for answer in (*ours, *theirs)} == {200}, theirs[0].document
    assert [found for found, in_chunks in compare(case, ours, theirs) if not is_listed(case, found, in_chunks)] == []


@pytest.mark.parametrize("case", [case for case in ANSWERED if case.vllm_refuses is not None], ids=by_name)
async def test_what_vllms_own_server_refuses_is_as_listed(case: Case, server: Asker) -> None:
    whole, streamed = await server.ask_both_ways(case)
    assert whole.status == 400
    for refusal in (whole, streamed):  # of a stream it may be the first event, after a 200
        assert str(case.vllm_refuses) in refusal.document["error"]["message"]


@pytest.mark.parametrize("case", REFUSED, ids=by_name)
async def test_what_the_gateway_refuses_vllms_own_server_refuses_too_but_for_the_listed(
    case: Case, gateway: Asker, server: Asker
) -> None:
    ours, theirs = await asyncio.gather(gateway.ask(case, stream=False), server.ask(case, stream=False))
    assert theirs.status == (200 if case.name in ANSWERED_BY_VLLM else ours.status)
    if theirs.status != 200:
        assert all(is_listed(case, found, False) for found in find_differences(ours.document, theirs.document))


@pytest.mark.parametrize("case", RELAYED, ids=by_name)
async def test_what_is_relayed_is_answered_by_vllms_own_server(case: Case, gateway: Asker, server: Asker) -> None:
    unpinned = replace(gateway, pin=None)
    ours, theirs = await asyncio.gather(unpinned.ask_both_ways(case), server.ask_both_ways(case))
    for left, right in zip(ours, theirs, strict=True):
        assert (left.backend, left.reason.partition(" ")[0]) == (VLLM, "needs=relay")
        assert left.status == right.status
        assert list(find_differences(left.lasting, right.lasting)) == []


@pytest.mark.parametrize("row", DIFFERENCES, ids=attrgetter("field"))
async def test_a_listed_difference_is_one(row: Difference, gateway: Asker, server: Asker) -> None:
    case = BY_NAME[row.seen_in]
    ours, theirs = await asyncio.gather(gateway.ask_both_ways(case), server.ask_both_ways(case))
    found = [place for place in compare(case, ours, theirs) if row.covers(case.name, place[0], in_chunks=place[1])]
    assert {in_chunks for _, in_chunks in found} == {False, row.chunks != NOWHERE}


def is_listed(case: Case, found: Found, in_chunks: bool) -> bool:
    return explain(case.name, found, in_chunks=in_chunks) is not None


def compare(case: Case, ours: tuple[Answer, Answer], theirs: tuple[Answer, Answer]) -> Iterator[tuple[Found, bool]]:
    """Differences of whole answers and of streams, and whether it is one of which fields the chunks have."""
    is_drawn = isinstance(case.expected, Sampled) and not case.expected.is_seeded
    for left, right in zip(ours, theirs, strict=True):
        documents = (left.outline, right.outline) if is_drawn else (left.document, right.document)
        for found in find_differences(*documents):
            yield found, False
        for path in sorted(left.fields - right.fields):
            yield Found(path, True, ABSENT), True
        for path in sorted(right.fields - left.fields):
            yield Found(path, ABSENT, True), True
