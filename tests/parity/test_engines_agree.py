"""The table, asked of either engine through the gateway: one answer, streamed or not, or a refusal by the field.

Behind the gateway: a real Triton beside a real vLLM with the same weights; for some the reference engine on both wires.
"""

import asyncio
import re
from collections import Counter

import pytest

from deploy.stacks import ROOT
from tests.parity.answers import Answer
from tests.parity.asking import TRITON, VLLM, Asker
from tests.parity.case import CHAT, TEXT, Case, OnlyVLLM, Refused, Relayed, Same, Sampled
from tests.parity.cases import CASES
from tests.parity.compare import Found, find_differences
from tests.workers import ON_CPU_STACK

PAGE = (ROOT / "docs/api.md").read_text().partition("\n## Refused\n")[0]
SAMPLE = 3  # of so many cases one for the embedded stack, whose two wires have one engine behind them


def of(kind: type) -> pytest.MarkDecorator:
    cases = [case for case in CASES if isinstance(case.expected, kind)]
    return pytest.mark.parametrize(
        ("case", "stack"),
        [
            *(pytest.param(case, "cpu", id=case.name, marks=ON_CPU_STACK) for case in cases),
            *(pytest.param(case, "embedded", id=f"embedded {case.name}") for case in cases[::SAMPLE]),
        ],
        indirect=["stack"],
    )


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []


@pytest.mark.parametrize(("endpoint", "path"), [("chat", CHAT), ("completions", TEXT)])
def test_every_documented_field_that_is_not_refused_is_in_the_table(endpoint: str, path: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (both|chat|completions) \|", PAGE, re.MULTILINE)
    documented = {field for field, where in rows if where in {"both", endpoint}}
    tabled = {field for case in CASES if case.path == path for field in case.request(stream=True)}
    assert documented <= tabled
    assert len(documented) > 30


@of(Same)
async def test_both_engines_give_the_same_answer_streamed_and_not(case: Case, triton: Asker, vllm: Asker) -> None:
    (left, streamed_left), (right, streamed_right) = await asyncio.gather(
        triton.ask_both_ways(case), vllm.ask_both_ways(case)
    )
    check_answered(left, streamed_left, TRITON)
    check_answered(right, streamed_right, VLLM)
    assert differences(left, right) == []
    assert differences(left, streamed_left) == []
    assert differences(right, streamed_right) == []
    check_anchor(case, left)


@of(Sampled)
async def test_both_engines_answer_alike_but_for_what_chance_decides(case: Case, triton: Asker, vllm: Asker) -> None:
    assert isinstance(case.expected, Sampled)
    outlines = []
    for asker, name in ((triton, TRITON), (vllm, VLLM)):
        whole, streamed = await asker.ask_both_ways(case)
        check_answered(whole, streamed, name)
        assert streamed.outline == whole.outline
        if case.expected.is_seeded:
            assert differences(whole, streamed) == []
        outlines.append(whole.outline)
    assert outlines[0] == outlines[1]


@of(OnlyVLLM)
async def test_what_triton_lacks_is_refused_there_by_name_and_unpinned_goes_to_vllm(
    case: Case, triton: Asker, vllm: Asker, anybody: Asker
) -> None:
    assert isinstance(case.expected, OnlyVLLM)
    refusals, answers, free = await asyncio.gather(
        triton.ask_both_ways(case), vllm.ask_both_ways(case), anybody.ask_both_ways(case)
    )
    for refusal in refusals:
        check_refusal(refusal, Refused(case.expected.field))
        assert TRITON in refusal.document["error"]["message"]
    check_answered(*answers, VLLM)
    check_answered(*free, VLLM)
    for answer in free:
        assert answer.reason.partition(" ")[0] == f"needs={case.expected.need}"
    first, *others = (*answers, *free)
    for other in others:
        assert differences(first, other) == []


@of(Relayed)
async def test_what_triton_cannot_read_is_refused_there_by_name(case: Case, triton: Asker) -> None:
    assert isinstance(case.expected, Relayed)
    for refusal in await triton.ask_both_ways(case):
        check_refusal(refusal, Refused(case.expected.field))


@of(Refused)
async def test_what_no_engine_is_asked_is_refused_alike(case: Case, triton: Asker, vllm: Asker, anybody: Asker) -> None:
    assert isinstance(case.expected, Refused)
    askers = (anybody, triton, vllm)
    refusals = [answer for both in await asyncio.gather(*(a.ask_both_ways(case) for a in askers)) for answer in both]
    for refusal in refusals:
        check_refusal(refusal, case.expected)
    assert all(refusal.document == refusals[0].document for refusal in refusals)


CONTEXT = "context_length_exceeded"


def differences(one: Answer, other: Answer) -> list[Found]:
    return list(find_differences(one.lasting, other.lasting))


def check_answered(whole: Answer, streamed: Answer, backend: str) -> None:
    """Two good answers from this backend."""
    for answer in (whole, streamed):
        assert (answer.status, answer.backend) == (200, backend), answer.document


def check_refusal(answer: Answer, expected: Refused) -> None:
    assert answer.status == expected.status, answer.document
    assert answer.backend is None
    error = answer.document["error"]
    assert (error["param"], error["code"], error["type"]) == (expected.param, expected.code, "invalid_request_error")
    # That something does not fit is about several fields; `param` names one.
    assert expected.code == CONTEXT or str(expected.param) in error["message"]


def check_anchor(case: Case, answer: Answer) -> None:
    """What engines do alike may be wrong alike."""
    assert isinstance(case.expected, Same)
    choices = answer.document["choices"]
    if case.expected.finish is not None:
        assert {choice["finish_reason"] for choice in choices} == {case.expected.finish}
    if case.expected.text is not None:
        texts = {choice["message"]["content"] if case.is_chat else choice["text"] for choice in choices}
        assert texts == {case.expected.text}
