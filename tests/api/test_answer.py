"""The sink and its outbox: ids in, frames out, without a socket."""

import asyncio
from collections.abc import Sequence

import orjson
import pytest

from gateway.api.answer import Answer, Outbox
from gateway.api.frames import CHAT, Fold, Frames, Head, Stream
from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams
from gateway.errors import BackendError, GatewayError
from gateway.language import ModelLanguage
from tests.api.conftest import Writer

REQUEST = GenerateRequest("r1", "tiny", Prompt((5, 6, 7)), SamplingParams(max_tokens=100), eos_token_ids=(2, 0))


def answer(language: ModelLanguage, *stop: str, stream: bool = False) -> tuple[Answer, Outbox]:
    head = Head(CHAT, "r1", 1, "tiny")
    frames: Frames = Stream(head, include_usage=True) if stream else Fold(head)
    outbox = Outbox()
    return Answer(language.decoder(REQUEST, stop), frames, len(REQUEST.prompt), outbox), outbox


async def fold(outbox: Outbox) -> tuple[str, str, int]:
    """(text, finish_reason, completion_tokens) of a folded answer."""
    body, is_last = await outbox.take()
    assert is_last
    whole = orjson.loads(body)
    choice = whole["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], whole["usage"]["completion_tokens"]


def cut(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_text_and_usage_do_not_depend_on_how_tokens_come(
    language: ModelLanguage, writer: Writer, size: int
) -> None:
    text = "Grüße, 你好 🙂 from Paris"
    ids = [*writer.ids(text), writer.eos]
    sink, outbox = answer(language)
    for piece in cut(ids, size):
        sink.tokens(piece)
    sink.finish(FinishReason.STOP)
    assert await fold(outbox) == (text, "stop", len(ids))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_a_stop_string_over_token_borders_ends_the_answer(
    language: ModelLanguage, writer: Writer, size: int
) -> None:
    ids = writer.ids("Paris is nice. Berlin too.")
    until_stop = next(n for n in range(len(ids)) if "e. B" in language.decode(ids[:n]))
    sink, outbox = answer(language, "zzz", "e. B")
    for piece in cut(ids, size):
        sink.tokens(piece)
    sink.finish(FinishReason.LENGTH)  # too late: the answer has ended itself
    assert await fold(outbox) == ("Paris is nic", "stop", until_stop)


async def test_text_held_back_for_a_stop_string_comes_at_the_end(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language, "nice!")
    sink.tokens(writer.ids("Paris is nice"))
    sink.finish(FinishReason.LENGTH)
    text, reason, _ = await fold(outbox)
    assert (text, reason) == ("Paris is nice", "length")


async def test_the_role_goes_out_with_the_first_token_even_if_its_text_is_held_back(
    language: ModelLanguage, writer: Writer
) -> None:
    sink, outbox = answer(language, "Paris!", stream=True)
    sink.tokens(writer.ids("Paris"))
    frames, is_last = await outbox.take()
    assert b'"role":"assistant"' in frames
    assert b'{"content":"P' not in frames
    assert not is_last


async def test_one_take_gets_all_frames_put_so_far(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language, stream=True)
    ids = writer.ids("Paris is nice.")
    for token_id in ids:
        sink.tokens([token_id])
    frames, _ = await outbox.take()
    assert frames.count(b"data: ") == 1 + len(ids)


async def test_an_error_comes_after_the_frames_before_it(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language, stream=True)
    sink.tokens(writer.ids("Paris"))
    sink.fail(BackendError("the engine died"))
    frames, is_last = await outbox.take()
    assert b"P" in frames
    assert not is_last
    with pytest.raises(BackendError, match="the engine died"):
        await outbox.take()


async def test_a_folded_answer_that_fails_late_has_no_frame(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language)
    sink.tokens(writer.ids("Paris"))
    sink.fail(BackendError("the engine died"))
    with pytest.raises(BackendError, match="the engine died"):
        await outbox.take()


async def test_the_first_end_counts(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language)
    sink.tokens([*writer.ids("Paris"), writer.eos])
    sink.finish(FinishReason.STOP)
    sink.fail(BackendError("late"))
    sink.tokens(writer.ids("more"))
    assert (await fold(outbox))[0] == "Paris"


async def test_take_waits_for_the_first_frame(language: ModelLanguage, writer: Writer) -> None:
    sink, outbox = answer(language)
    async with asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(outbox.take())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not taken.done()
        sink.tokens([writer.eos])
        sink.finish(FinishReason.STOP)
    assert taken.result()[1]


async def test_a_fault_in_decoding_fails_the_answer_and_not_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        stopped = False
        completion_tokens = 0

        def feed(self, token_ids: Sequence[int]) -> str:
            raise ZeroDivisionError

        def flush(self) -> str:
            return ""

    outbox = Outbox()
    sink = Answer(Broken(), Fold(Head(CHAT, "r1", 1, "tiny")), 3, outbox)  # type: ignore[arg-type]  # duck-typed decoder
    sink.tokens([1])
    with pytest.raises(GatewayError, match="failed to decode"):
        await outbox.take()
    assert "ZeroDivisionError" in caplog.text
