"""Guides over a real socket: what is wrong stops before any engine, and costs nobody else anything."""

import asyncio
import gc
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.client_http import ClientConnection, ClientLeft
from gateway.core import GenerateRequest, Guide, GuideKind, Need, Prompt, SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.serving import guide_checks
from gateway.serving.endpoints import INLINE_BODY_BYTES
from gateway.serving.guide_checks import GRACE_S, MAX_KNOWN, QUICK_S, START_S, TRY_S, GuideChecks, Trial, Verdict
from tests.serving.stack import RawAnswer, Stack, Writer, eventually, make_stack, raw_client, running

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
        (guide(grammar="root ::= nowhere"), "structured_outputs", "'nowhere' not found"),
        (FORCED, "tool_choice", "Invalid type: strin"),
        (guide(regex="[" * INLINE_BODY_BYTES), "structured_outputs", "unclosed character class"),
        (schema(COUNTED), "response_format", "too much time or memory"),
        (schema({"type": "array", "prefixItems": [COUNTED]}), "response_format", "too much time or memory"),
        (guide(grammar=CHAINED), "structured_outputs", "too much time or memory"),
        (guide(grammar=EXPONENTIAL), "structured_outputs", "too"),  # big, or much time: that is the machine's
    ],
    ids=lambda value: str(value)[:140].replace("\\n", " "),
)
async def test_a_guide_that_cannot_be_followed_is_refused_before_any_engine(
    stack: Stack, writer: Writer, fields: Mapping[str, object], param: str, why: str
) -> None:
    answer = await ask(stack, fields)
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert why in error["message"]
    assert not stack.requests
    stack.low.script = writer.script("a")
    assert (await ask(stack, schema({"type": "integer"}))).status == 200, "whatever became of the process"


@pytest.mark.parametrize(
    "fields",
    [
        schema({"type": "object", "properties": {"next": {"$ref": "#"}}}),
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
    stack.low.script = writer.script("a")
    answer = await ask(stack, fields)
    assert (answer.status, len(stack.requests)) == (200, 1), answer.body


async def test_guides_that_take_long_hold_up_no_other_answer(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("a")
    answered = 0
    async with raw_client(stack) as client, asyncio.TaskGroup() as tasks:
        trials = [tasks.create_task(ask(stack, guide(grammar=EXPONENTIAL + "\n" * place))) for place in range(2)]
        while not all(trial.done() for trial in trials):
            client.ask()
            answered += (await client.answer()).status == 200
            await asyncio.sleep(0.02)
    assert [trial.result().status for trial in trials] == [400] * 2
    assert answered > 5  # on the event loop each trial is one step: at most one answer comes between two


@pytest.mark.parametrize("http", [ClientConnection, "h11"])
async def test_a_client_that_leaves_while_its_guide_is_tried_reaches_no_engine(
    language: ModelLanguage, writer: Writer, http: type[ClientConnection] | str
) -> None:
    async with running(make_stack(language), http=http) as stack:
        async with raw_client(stack) as client:
            client.ask(CHAT, **guide(grammar=EXPONENTIAL))
            await asyncio.sleep(0.05)
            client.leave()
        stack.low.script = writer.script("a")
        assert (await ask(stack, guide(regex="a"))).status == 200  # in the same line, so the other one is through
        assert len(stack.requests) == 1


async def test_many_who_send_one_guide_that_takes_too_much_hold_up_no_other_new_guide(
    stack: Stack, writer: Writer
) -> None:
    """A hundred took 27 s, a quarter of one for each, before any other guide had its turn."""
    tried = count_trials(stack.app.endpoints._guides)
    stack.low.script = writer.script("a")
    async with asyncio.TaskGroup() as tasks:
        same = [tasks.create_task(ask(stack, schema(COUNTED))) for _ in range(100)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        assert (await ask(stack, schema({"type": "integer"}))).status == 200
        assert time.monotonic() - begun < TRY_S + GRACE_S  # what one may take
    assert [answer.result().status for answer in same] == [400] * 100
    assert tried.count(QUICK_S) == 2


async def test_many_guides_that_take_long_hold_up_no_short_one_of_the_same_client(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("a")
    async with asyncio.TaskGroup() as tasks:
        long = [tasks.create_task(ask(stack, guide(grammar=EXPONENTIAL + "\n" * place))) for place in range(3)]
        await asyncio.sleep(0.1)
        short = await ask(stack, guide(regex="ab"))
        assert short.status == 200
        assert not all(trial.done() for trial in long)
    assert [trial.result().status for trial in long] == [400] * 3


def stays() -> bool:
    return False


def guided(text: str) -> GenerateRequest:
    params = SamplingParams(1, guide=Guide(GuideKind.REGEX, text))
    return GenerateRequest("r", "m", Prompt((1,)), params, (2,), needs={Need.GUIDE: "structured_outputs"})


async def check(checks: GuideChecks, text: str) -> None:
    await checks.check(guided(text), "192.0.2.1", stays)


def count_trials(checks: GuideChecks) -> list[float]:
    """The time limit of each trial from here on."""
    tried: list[float] = []

    class Counting(Trial):
        def find_fault(self, guide: Guide, limit_s: float) -> str | None:
            tried.append(limit_s)
            return super().find_fault(guide, limit_s)

    checks._idle[:] = [Counting() for _ in checks._idle]
    return tried


def processes(checks: GuideChecks) -> list[subprocess.Popen[bytes]]:
    """Of the trials so far; the one that was used last is the last."""
    return [trial._process for trial in checks._idle if trial._process is not None]


def find_child(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())


async def test_a_guide_whose_client_has_left_is_not_tried_unless_another_waits_for_its_verdict() -> None:
    checks = GuideChecks()
    with pytest.raises(ClientLeft):
        await checks.check(guided("("), "192.0.2.1", lambda: True)
    assert not processes(checks)
    tried = count_trials(checks)
    results = await asyncio.gather(
        checks.check(guided("("), "192.0.2.1", lambda: True),
        check(checks, "("),
        check(checks, "("),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [ClientLeft, InvalidRequest, InvalidRequest]
    assert tried.count(QUICK_S) == 1


async def test_a_known_guide_is_not_tried_again_and_few_enough_are_known() -> None:
    checks = GuideChecks()
    tried = count_trials(checks)
    await check(checks, "known")
    checks._known |= {bytes([place % 256, place // 256]): Verdict("") for place in range(MAX_KNOWN - 1)}
    await check(checks, "known")
    assert tried.count(QUICK_S) == 1
    await check(checks, "new")
    assert tried.count(QUICK_S) == 2
    assert len(checks._known) == MAX_KNOWN


async def test_a_guide_that_took_too_much_is_refused_untried_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: it may have been the machine that was slow."""
    monkeypatch.setattr(guide_checks, "KEPT_S", 0.5)
    checks = GuideChecks()
    tried = count_trials(checks)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="too much time or memory"):
            await checks.check(chained(), "192.0.2.1", stays)
    assert tried == [QUICK_S, TRY_S]
    await asyncio.sleep(0.5)
    with pytest.raises(InvalidRequest, match="too much time or memory"):
        await checks.check(chained(), "192.0.2.1", stays)
    assert tried == [QUICK_S, TRY_S] * 2


@pytest.mark.parametrize("text", ["second", "😀" * 65_000], ids=["short", "more than a socket takes unread"])
async def test_a_process_that_does_not_answer_is_ended_in_time(text: str) -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    os.killpg(process.pid, signal.SIGSTOP)
    asked = time.monotonic()
    await check(checks, text)  # by another process, when this one has had its time
    assert GRACE_S <= time.monotonic() - asked < START_S
    assert process.returncode == -signal.SIGKILL


async def test_a_process_that_does_not_start_is_ended_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(guide_checks, "PROGRAM", silent)
    monkeypatch.setattr(guide_checks, "START_S", 0.2)
    checks = GuideChecks()
    with pytest.raises(RuntimeError, match="does not start"):
        await check(checks, "first")
    assert processes(checks)[0].returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError, match="does not start"):
        await check(checks, "first")


async def test_a_process_that_was_ended_from_outside_is_replaced_unnoticed() -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    process.kill()
    process.wait()
    await check(checks, "second")


async def test_what_ends_a_trial_does_not_end_its_process() -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    with pytest.raises(InvalidRequest, match="too much time or memory"):
        await checks.check(chained(), "192.0.2.1", stays)
    assert process.poll() is None
    await check(checks, "second")
    assert process in processes(checks)


async def test_verdicts_stay_with_their_guides_when_what_tries_is_ended_between_two() -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    os.kill(find_child(process), signal.SIGKILL)
    for text, is_sound in (("second", True), ("(", False), ("third", True), ("[", False)):
        with nullcontext() if is_sound else pytest.raises(InvalidRequest, match="unclosed"):
            await check(checks, text)
    assert processes(checks) == [process]


def chained() -> GenerateRequest:
    params = SamplingParams(1, guide=Guide(GuideKind.GRAMMAR, CHAINED))
    return replace(guided(""), params=params)


async def test_the_process_ends_when_its_gateway_does() -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    checks._idle[-1]._answers.close()  # as the kernel does
    checks._idle[-1]._line.close()
    assert process.wait(10) == 0


async def test_the_process_ends_with_who_started_it() -> None:
    checks = GuideChecks()
    await check(checks, "first")
    (process,) = processes(checks)
    del checks

    def is_killed() -> bool:
        gc.collect()  # the thread that has asked the process may refer to its owner for another moment
        return process.returncode == -signal.SIGKILL

    await eventually(is_killed)
