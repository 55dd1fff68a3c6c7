import pytest

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.errors import Untrusted
from loadtest.client.prompts import PromptId, Work
from tests.loadtest.samples import make_answer

PROMPT = PromptId(0, 0, 0)
WORK = Work("triton", PROMPT, 4)


def test_the_requested_work_passes_and_is_counted() -> None:
    gate = AnswerGate()
    gate.check(make_answer(0.0, [1.0, 2.0, 3.0, 4.0]), WORK)
    assert gate.answers == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("completion_tokens", 3, "UNEQUAL WORK: triton returned 3 of 4 tokens"),
        ("completion_tokens", 5, "UNEQUAL WORK: triton returned 5 of 4 tokens"),
        ("finish_reason", "stop", "finish=stop"),
        ("backend", "vllm", "pinned to triton was served by vllm"),
        ("backend", None, "no x-crossover-backend header"),
        ("error", "engine died", "triton answered an error: engine died"),
        ("finish_reason", None, "without a finish_reason"),
        ("completion_tokens", None, "NO USAGE"),
        ("prompt_tokens", None, "NO USAGE"),
    ],
)
def test_anything_else_is_refused(field: str, value: object, message: str) -> None:
    answer = make_answer(0.0, [1.0, 2.0, 3.0, 4.0])
    setattr(answer, field, value)
    with pytest.raises(Untrusted, match=message) as refused:
        AnswerGate().check(answer, WORK)
    assert refused.value.exit_code == 3


def test_the_same_prompt_must_be_as_many_tokens_on_both_backends() -> None:
    gate = AnswerGate()
    gate.check(make_answer(0.0, [1.0], prompt_tokens=7), Work("triton", PROMPT, 1))
    other = make_answer(0.0, [1.0], prompt_tokens=8)
    other.backend = "vllm"
    with pytest.raises(Untrusted, match="was 8 tokens on vllm and 7 on triton"):
        gate.check(other, Work("vllm", PROMPT, 1))
