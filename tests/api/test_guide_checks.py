"""Guides over a real socket: what is wrong stops before any engine, and costs nobody else anything."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Mapping

import pytest

from gateway.api.guide_checks import MOST_KNOWN, TRY_S, GuideChecks
from gateway.api.inference import INLINE_BODY_BYTES
from gateway.core import GenerateRequest, Guide, GuideKind, Need, Prompt, SamplingParams
from gateway.errors import InvalidRequest
from tests.api.conftest import RawAnswer, Stack, Writer, raw_client

CHAT = "/v1/chat/completions"
STRIN = {"type": "strin"}
TAKES_STRIN = {"type": "object", "properties": {"a": STRIN}}
FORCED = {
    "tools": [{"type": "function", "function": {"name": "f", "parameters": TAKES_STRIN}}],
    "tool_choice": "required",
}
# Each ends the process that compiles it, by its memory or by its stack; llguidance 1.7.6.
COUNTED = {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}
CHAINED = "start: r0\n" + "\n".join(f"r{number}: r{number + 1}" for number in range(3000)) + '\nr3000: "x"'
EXPONENTIAL = (
    "start: A0\n" + "\n".join(f"A{number}: A{number + 1} A{number + 1}" for number in range(40)) + '\nA40: "x"'
)


def schema(of: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": of}}}


def guide(**kind: object) -> dict[str, object]:
    return {"structured_outputs": kind}


async def ask(stack: Stack, fields: Mapping[str, object]) -> RawAnswer:
    async with raw_client(stack) as client:
        client.ask(CHAT, **fields)
        return await client.answer()


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        (schema(STRIN), "response_format", "Invalid type: strin"),
        (schema({"$ref": "http://127.0.0.1:1/x.json"}), "response_format", "does not fetch"),
        (guide(json=STRIN), "structured_outputs", "Invalid type: strin"),
        (guide(regex="[a"), "structured_outputs", "unclosed character class"),
        (guide(grammar="root ::= nowhere"), "structured_outputs", "'nowhere' not found"),
        (FORCED, "tool_choice", "Invalid type: strin"),
        (FORCED | {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "strin"),
        (guide(regex="[" * INLINE_BODY_BYTES), "structured_outputs", "unclosed character class"),
        (schema(COUNTED), "response_format", "too much time or memory"),
        (schema({"type": "array", "prefixItems": [COUNTED]}), "response_format", "too much time or memory"),
        (guide(grammar=CHAINED), "structured_outputs", "too much time or memory"),
        (guide(grammar=EXPONENTIAL), "structured_outputs", "too"),  # big, or much time: that is the machine's
    ],
    ids=lambda value: str(value)[:140].replace("\\n", " "),
)
async def test_a_guide_that_cannot_be_followed_is_refused_before_any_engine(
    stack: Stack, fields: Mapping[str, object], param: str, why: str
) -> None:
    answer = await ask(stack, fields)
    assert answer.status == 400, answer.body
    assert b'"type":"invalid_request_error"' in answer.body
    assert f'"param":"{param}"'.encode() in answer.body
    assert why.encode() in answer.body
    assert not stack.requests


@pytest.mark.parametrize(
    "fields",
    [
        schema({"type": "object", "properties": {"next": {"$ref": "#"}}}),
        schema({"oneOf": [{"type": "integer"}, {"type": "string"}]}),
        guide(regex="((a{1,999}){1,999})"),
        guide(choice=["a.b*c", 'q"\\']),
        guide(grammar='root ::= "a"\n  | "b"'),
        {"response_format": {"type": "json_object"}},
        FORCED | {"tool_choice": "auto"},  # binds no answer, so nobody compiles it
    ],
    ids=lambda value: str(value)[:140].replace("\\n", " "),
)
async def test_a_guide_that_can_be_followed_reaches_an_engine(
    stack: Stack, writer: Writer, fields: Mapping[str, object]
) -> None:
    stack.low.script = writer.says("a")
    answer = await ask(stack, fields)
    assert (answer.status, len(stack.requests)) == (200, 1), answer.body


async def test_guides_that_take_long_hold_up_no_other_answer(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says("a")
    answered = 0
    async with raw_client(stack) as client, asyncio.TaskGroup() as tasks:
        trials = [tasks.create_task(ask(stack, guide(grammar=EXPONENTIAL + "\n" * place))) for place in range(3)]
        while not all(trial.done() for trial in trials):
            client.ask()
            answered += (await client.answer()).status == 200
            await asyncio.sleep(0.02)
    assert [trial.result().status for trial in trials] == [400] * 3
    assert answered > 5  # on the event loop each trial is one step: at most one answer comes between two


async def test_a_sound_guide_after_one_that_ended_the_process_is_followed(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says("a")
    assert (await ask(stack, schema(COUNTED))).status == 400
    assert (await ask(stack, schema({"type": "integer"}))).status == 200


async def test_a_client_that_leaves_while_its_guide_is_tried_reaches_no_engine(stack: Stack, writer: Writer) -> None:
    async with raw_client(stack) as client:
        client.ask(CHAT, **guide(grammar=EXPONENTIAL))
        await asyncio.sleep(0.05)
        client.leave()
    stack.low.script = writer.says("a")
    assert (await ask(stack, guide(regex="a"))).status == 200  # in the same line, so the other one is through
    assert len(stack.requests) == 1


def stays() -> bool:
    return False


def guided(text: str) -> GenerateRequest:
    params = SamplingParams(1, guide=Guide(GuideKind.REGEX, text))
    return GenerateRequest("r", "m", Prompt((1,)), params, (2,), needs={Need.GUIDE: "structured_outputs"})


async def test_a_guide_whose_client_has_left_is_not_tried() -> None:
    checks = GuideChecks()
    await checks.check(guided("("), lambda: True)
    assert checks._trial._process is None
    with pytest.raises(InvalidRequest):
        await checks.check(guided("("), stays)  # nothing was made of it


async def test_a_known_guide_is_not_tried_again_and_few_enough_are_known() -> None:
    checks = GuideChecks()
    await checks.check(guided("known"), stays)
    process = checks._trial._process
    assert process is not None
    checks._known |= {bytes([place % 256, place // 256]): "" for place in range(MOST_KNOWN - 1)}
    checks._trial._process = None  # a trial would start another
    await checks.check(guided("known"), stays)
    assert checks._trial._process is None
    checks._trial._process = process
    await checks.check(guided("new"), stays)
    assert len(checks._known) == MOST_KNOWN


async def test_a_process_that_does_not_answer_is_ended_in_time_and_not_held_against_the_guide() -> None:
    checks = GuideChecks()
    await checks.check(guided("first"), stays)
    process = checks._trial._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    asked = time.monotonic()
    with pytest.raises(InvalidRequest, match="too much time"):
        await checks.check(guided("second"), stays)
    assert TRY_S <= time.monotonic() - asked < TRY_S + 5
    assert process.returncode == -signal.SIGKILL
    await checks.check(guided("second"), stays)


async def test_a_process_that_was_ended_from_outside_is_replaced_unnoticed() -> None:
    checks = GuideChecks()
    await checks.check(guided("first"), stays)
    process = checks._trial._process
    assert process is not None
    process.kill()
    process.wait()
    await checks.check(guided("second"), stays)


async def test_the_process_ends_when_its_gateway_does() -> None:
    checks = GuideChecks()
    await checks.check(guided("first"), stays)
    process = checks._trial._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # as the kernel does
    assert process.wait(10) == 0


async def test_the_process_ends_with_who_started_it() -> None:
    checks = GuideChecks()
    await checks.check(guided("first"), stays)
    process = checks._trial._process
    assert process is not None
    del checks
    gc.collect()
    assert process.returncode == -signal.SIGKILL
