"""The table, asked of the gateway and of vLLM's own server before the same engine: field by field one answer.

Where it is not, a row of differences.py says why, and each row is seen in a case.
"""

import asyncio
from collections.abc import Iterator
from operator import attrgetter

import aiohttp
import pytest

from deploy.launch import Launched
from tests.parity.answers import Answer
from tests.parity.asking import VLLM, Asker
from tests.parity.case import Case, Refused, Sampled
from tests.parity.cases import BY_NAME, CASES
from tests.parity.compare import ABSENT, Found, find_differences
from tests.parity.differences import DIFFERENCES, Difference, explain

ANSWERED = [case for case in CASES if not isinstance(case.expected, Refused)]
SUPPORTED = [case for case in ANSWERED if case.vllm_refuses is None]
REFUSED_THERE = [case for case in ANSWERED if case.vllm_refuses is not None]


@pytest.fixture
def gateway(cpu_stack: Launched, session: aiohttp.ClientSession) -> Asker:
    return Asker(session, cpu_stack.url, VLLM)


@pytest.fixture
def server(cpu_stack: Launched, session: aiohttp.ClientSession) -> Asker:
    """vLLM's own."""
    return Asker(session, str(cpu_stack.stack.backends["vllm"]["url"]))


@pytest.mark.parametrize("case", SUPPORTED, ids=attrgetter("name"))
async def test_the_gateway_and_vllms_own_server_agree_but_for_the_listed(
    case: Case, gateway: Asker, server: Asker
) -> None:
    ours, theirs = await asyncio.gather(gateway.ask_both_ways(case), server.ask_both_ways(case))
    assert {answer.status for answer in (*ours, *theirs)} == {200}, theirs[0].document
    unlisted = [
        found
        for pair in zip(ours, theirs, strict=True)
        for found, in_fields in compare(case, *pair)
        if explain(found, in_fields=in_fields) is None
    ]
    assert unlisted == []


@pytest.mark.parametrize("row", DIFFERENCES, ids=attrgetter("field"))
async def test_a_listed_difference_is_one(row: Difference, gateway: Asker, server: Asker) -> None:
    case = BY_NAME[row.seen_in]
    ours, theirs = await asyncio.gather(gateway.ask_both_ways(case), server.ask_both_ways(case))
    seen = [found for pair in zip(ours, theirs, strict=True) for found in compare(case, *pair)]
    assert any(in_fields == row.in_fields and row.covers(found) for found, in_fields in seen)


@pytest.mark.parametrize("case", REFUSED_THERE, ids=attrgetter("name"))
async def test_what_vllms_own_server_refuses_is_as_listed(case: Case, server: Asker) -> None:
    for refusal in await server.ask_both_ways(case):
        assert refusal.status == 400
        assert str(case.vllm_refuses) in refusal.document["error"]["message"]


def compare(case: Case, ours: Answer, theirs: Answer) -> Iterator[tuple[Found, bool]]:
    """Differences of the documents, then those of which fields a stream's chunks have."""
    is_drawn = isinstance(case.expected, Sampled) and not case.expected.is_seeded
    documents = (ours.outline, theirs.outline) if is_drawn else (ours.document, theirs.document)
    for found in find_differences(*documents):
        yield found, False
    for path in sorted(ours.fields - theirs.fields):
        yield Found(path, True, ABSENT), True
    for path in sorted(theirs.fields - ours.fields):
        yield Found(path, ABSENT, True), True
