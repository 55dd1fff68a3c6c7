"""Tool calls of chats before a vLLM that guides with guidance and before one with xgrammar: the same calls.

Four ways to each answer: through the gateway to Triton, to either vLLM, and by the own server of the vLLM with
xgrammar. That of the other one is in test_vllm_agrees.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import aiohttp
import orjson
import pytest

from deploy.cpu import STACKS, vllm
from deploy.launch import Launched, launched
from deploy.ports import LOCALHOST, find_free
from tests.conftest import print_ready
from tests.parity.answers import Answer
from tests.parity.asking import TRITON, VLLM, Asker
from tests.parity.case import OnlyVLLM
from tests.parity.table import tools

Choice: TypeAlias = tuple[str, list[tuple[str, object]], str]

CASES = {case.name: case for case in tools.CASES if not isinstance(case.expected, OnlyVLLM)}
# Where vLLM 0.32's own server with xgrammar does otherwise, and why.
LISTED = {
    "a form beside tools, a call": "vLLM holds calls to the form too, so that there are none",
    "a form beside tools, an answer": "as above, and xgrammar puts other spaces into it",
    "tools allowed": "vLLM refuses OpenAI's allowed_tools",
    "tools allowed and required": "as above",
    "tools forbidden": "the model is shown none of them here; vLLM shows them",
    "tool call at a stop string": "a call that is cut off is begun here, as in a stream; vLLM shows its text",
}
FORMED = "a form beside tools, an answer"  # JSON in which each library allows spaces of its own


@pytest.fixture(scope="module")
def xgrammar_stack(cpu_stack: Launched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """The other stack's Triton beside one more vLLM, and a gateway before them."""
    folder, [http] = tmp_path_factory.mktemp("xgrammar"), find_free(1)
    backends = dict(cpu_stack.stack.backends)
    backends[VLLM] = {**backends[VLLM], "url": f"http://{LOCALHOST}:{http}"}
    stack = replace(cpu_stack.stack, engines=(vllm(STACKS / "vllm", http, "xgrammar"),), backends=backends)
    with launched(stack, find_free(1)[0], folder, print_ready) as running:
        yield running


@pytest.mark.parametrize("name", CASES)
async def test_calls_are_the_same_whichever_library_guides(
    cpu_stack: Launched, xgrammar_stack: Launched, session: aiohttp.ClientSession, name: str
) -> None:
    asked = [
        Asker(session, cpu_stack.url, TRITON),
        Asker(session, cpu_stack.url, VLLM),
        Asker(session, xgrammar_stack.url, VLLM),
    ]
    answers = await asyncio.gather(*(asker.ask_both_ways(CASES[name]) for asker in asked))
    first, *others = [read(answer) for both in answers for answer in both]
    assert others == [first] * 5 or (name == FORMED and others == [first] * 3 + [others[-1]] * 2)
    server = Asker(session, str(xgrammar_stack.stack.backends[VLLM]["url"]), is_gateway=False)
    own = await server.ask(CASES[name], stream=False)
    if name in LISTED:
        assert own.status != 200 or read(own) != first
    else:
        assert read(own) == first


def read(answer: Answer) -> list[Choice]:
    """Returns what the client reads of each choice: text, calls and why it ended."""
    assert answer.status == 200, answer.document
    return [read_choice(choice["message"], choice["finish_reason"]) for choice in answer.document["choices"]]


def read_choice(message: dict[str, Any], finish: str) -> Choice:  # Any: JSON
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["content"] or "", [(call["name"], parse(call["arguments"])) for call in calls], finish


def parse(arguments: str) -> object:
    """A call that is cut off has half an object."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
