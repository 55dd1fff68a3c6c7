"""The sink of the token lane: ids in, frames out, without a socket."""

from collections.abc import Sequence

import orjson
import pytest

from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams
from gateway.errors import GatewayError
from gateway.language import ModelLanguage
from gateway.openai.frames import CHAT, AnswerHead, Fold, Stream
from gateway.wire.answer import ChoiceGroup, Frames
from gateway.wire.choice import Choice, Write
from tests.serving.stack import Writer

REQUEST = GenerateRequest("r1", "tiny", Prompt((5, 6, 7)), SamplingParams(max_tokens=100), eos_token_ids=(2, 0))


class Recorded:
    """A Write that records its frames."""

    def __init__(self) -> None:
        self.puts: list[bytes] = []
        self.is_complete = False
        self.error: GatewayError | None = None

    def begin(self, frames: bytes) -> Write:
        assert not self.puts
        self.put(frames)
        return self.put

    def put(self, frames: bytes) -> None:
        assert frames
        assert not self.is_over
        self.puts.append(frames)

    def finish(self, frames: bytes) -> None:
        self.put(frames)
        self.is_complete = True

    def fail(self, error: GatewayError) -> None:
        assert not self.is_over
        self.error = error

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.error is not None

    def fold(self) -> tuple[str, str, int]:
        """(text, finish_reason, completion_tokens) of a folded answer."""
        assert self.is_complete
        whole = orjson.loads(b"".join(self.puts))
        choice = whole["choices"][0]
        return choice["message"]["content"], choice["finish_reason"], whole["usage"]["completion_tokens"]


def answer(language: ModelLanguage, *stop: str, stream: bool = False) -> tuple[Choice, Recorded]:
    head = AnswerHead(CHAT, "r1", 1, "tiny")
    group = ChoiceGroup(choices=1, prompt_tokens=len(REQUEST.prompt))
    frames: Frames = Stream(head, 0, group, include_usage=True) if stream else Fold(head, 0, group)
    recorded = Recorded()
    return Choice(language.decoder(REQUEST, stop), frames, recorded), recorded


def cut(ids: Sequence[int], size: int) -> list[Sequence[int]]:
    return [ids[start : start + size] for start in range(0, len(ids), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_text_and_usage_do_not_depend_on_how_tokens_come(language: ModelLanguage, writer: Writer, size: int) -> None:
    text = "Grüße, 你好 🙂 from Paris"
    ids = [*writer.ids(text), writer.eos]
    sink, recorded = answer(language)
    for piece in cut(ids, size):
        sink.tokens(piece)
    sink.finish(FinishReason.STOP)
    assert recorded.fold() == (text, "stop", len(ids))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_stop_string_over_token_borders_ends_the_answer(language: ModelLanguage, writer: Writer, size: int) -> None:
    ids = writer.ids("Paris is nice. Berlin too.")
    until_stop = next(n for n in range(len(ids)) if "e. B" in language.decode(ids[:n]))
    sink, recorded = answer(language, "zzy", "e. B")
    for piece in cut(ids, size):
        sink.tokens(piece)
    sink.finish(FinishReason.LENGTH)  # too late: the answer has ended itself
    assert recorded.fold() == ("Paris is nic", "stop", until_stop)


def test_the_role_goes_out_with_the_first_token_even_if_its_text_is_held_back(
    language: ModelLanguage, writer: Writer
) -> None:
    sink, recorded = answer(language, "Paris!", stream=True)
    sink.tokens(writer.ids("Paris"))
    (frames,) = recorded.puts
    assert b'"role":"assistant"' in frames
    assert b'{"content":"P' not in frames


def test_tokens_that_come_together_leave_together(language: ModelLanguage, writer: Writer) -> None:
    sink, recorded = answer(language, stream=True)
    sink.tokens(writer.ids("Paris is nice."))
    sink.tokens(writer.ids(" Berlin"))
    assert len(recorded.puts) == 2
    assert b'"content":"Paris is nice."' in recorded.puts[0]


def test_nothing_leaves_while_no_text_is_certain(language: ModelLanguage, writer: Writer) -> None:
    sink, recorded = answer(language, "Paris!", "x!", stream=True)
    sink.tokens(writer.ids("Paris"))
    sink.tokens([writer.eos])
    assert len(recorded.puts) == 1
    sink.finish(FinishReason.STOP)
    assert b'"content":"Paris"' in recorded.puts[-1], "the end leaves with the last text"
    assert recorded.puts[-1].endswith(b"data: [DONE]\n\n")


def test_a_stop_string_that_ends_the_answer_after_others_leaves_with_its_end(
    language: ModelLanguage, writer: Writer
) -> None:
    sink, recorded = answer(language, ".", stream=True)
    sink.tokens(writer.ids("Paris"))
    sink.tokens(writer.ids(" is. nice"))
    assert recorded.is_complete
    assert len(recorded.puts) == 2
    assert b'"content":" is"' in recorded.puts[-1]
    assert recorded.puts[-1].endswith(b"data: [DONE]\n\n")


def test_the_first_end_counts(language: ModelLanguage, writer: Writer) -> None:
    sink, recorded = answer(language)
    sink.tokens([*writer.ids("Paris"), writer.eos])
    sink.finish(FinishReason.STOP)
    sink.tokens(writer.ids("more"))
    assert recorded.fold()[0] == "Paris"


def test_a_fault_in_decoding_fails_the_answer_and_not_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        stopped = False
        completion_tokens = 0

        def feed(self, token_ids: Sequence[int]) -> str:
            raise ZeroDivisionError

        def flush(self) -> str:
            return ""

    recorded = Recorded()
    sink = Choice(
        Broken(), Fold(AnswerHead(CHAT, "r1", 1, "tiny"), 0, ChoiceGroup(choices=1, prompt_tokens=3)), recorded
    )
    sink.tokens([1])
    sink.tokens([2])
    assert "failed to decode" in str(recorded.error)
    assert "ZeroDivisionError" in caplog.text
