import json
from collections.abc import Mapping, Sequence

import pytest

from loadtest.client.streamed_answer import StreamedAnswer
from tests.loadtest.samples import make_answer

ROLE: Mapping[str, object] = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
DONE = b"data: [DONE]\n\n"


def text(content: str, count: int | None = None) -> dict[str, object]:
    chunk: dict[str, object] = {"choices": [{"delta": {"content": content}}]}
    return chunk if count is None else chunk | {"usage": {"prompt_tokens": 5, "completion_tokens": count}}


def finish(reason: str = "length") -> dict[str, object]:
    return {"choices": [{"delta": {}, "finish_reason": reason}]}


def usage(count: int) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}}


def event(chunk: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def read(*chunks: Mapping[str, object], started_at: float = 10.0) -> StreamedAnswer:
    """An answer whose chunks arrive one second apart, the first after one second."""
    answer = StreamedAnswer()
    answer.begin(started_at)
    answer.head(200, {"x-crossover-backend": "vllm"})
    for second, chunk in enumerate(chunks, start=1):
        answer.body(event(chunk), started_at + second)
    answer.body(DONE, started_at + len(chunks) + 1)
    answer.end()
    return answer


def test_a_complete_answer_has_token_times_usage_reason_and_backend() -> None:
    answer = read(ROLE, text("Hel"), text("lo"), finish(), usage(2))  # the role alone is no token
    assert (answer.times, answer.counts) == ([12.0, 13.0], [1, 2])
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2)
    assert (answer.finish_reason, answer.backend, answer.error) == ("length", "vllm", None)
    assert answer.finished_at == 14.0  # with its finish_reason, not with usage
    assert answer.is_complete


@pytest.mark.parametrize(
    "token",
    [*({"delta": {key: "x"}} for key in ("content", "reasoning_content", "tool_calls")), {"text": "a"}],
)
def test_any_generated_delta_and_a_completions_text_are_tokens(token: Mapping[str, object]) -> None:
    assert read({"choices": [token]}, finish(), usage(1)).times == [11.0]


@pytest.mark.parametrize(
    ("chunks", "counts", "is_counted"),
    [
        ((text("a", 1), text("", 2), text("bcd", 5), finish(), usage(5)), [1, 2, 5], True),
        (
            (text("a"), text("b"), finish() | {"usage": usage(3)["usage"]}),
            [1, 2],
            False,
        ),  # no token
        ((ROLE, finish(), usage(4)), [4], True),  # an answer without text has its tokens at its end
    ],
)
def test_counts_are_the_servers_own_where_every_event_has_usage(
    chunks: Sequence[Mapping[str, object]], counts: list[int], is_counted: bool
) -> None:
    answer = read(*chunks)
    assert (answer.counts, answer.is_counted) == (counts, is_counted)


@pytest.mark.parametrize("cut", range(1, 60, 7))
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_bytes_may_be_cut_anywhere(cut: int, newline: bytes) -> None:
    stream = b"".join(map(event, (ROLE, text("é"), text("b"), finish(), usage(2)))) + DONE
    stream = stream.replace(b"\n", newline)
    answer = StreamedAnswer()
    answer.head(200, {})
    for start in range(0, len(stream), cut):
        answer.body(stream[start : start + cut], float(start))
    answer.end()
    assert (answer.counts, answer.completion_tokens, answer.finish_reason) == ([1, 2], 2, "length")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b'data: {"error": {"message": "engine died"}}\n\n', "engine died"),
        (200, b"data: {oops\n\n", "an event of the stream is not JSON"),
        (404, b'{"error": {"message": "no such model"}}', "HTTP 404: no such model"),
        (404, b"<html>nginx</html>", "HTTP 404: <html>nginx</html>"),
        (404, b"", "HTTP 404: no body"),
    ],
)
def test_an_error_has_the_servers_words(status: int, body: bytes, message: str) -> None:
    answer = StreamedAnswer()
    answer.head(status, {})
    answer.body(body, 1.0)
    answer.end()
    assert (answer.error, answer.is_complete) == (message, False)


def test_a_stream_without_usage_is_not_complete() -> None:
    assert not read(text("a"), finish()).is_complete


def test_latencies_are_the_same_however_tokens_are_bundled() -> None:
    answer = make_answer(10.0, [10.5, 10.7, 10.9, 11.1])
    assert (answer.ttft_s, answer.e2e_s, answer.tpot_s) == pytest.approx((0.5, 1.1, 0.2))
    answer.times, answer.counts = [10.7, 11.1], [2, 4]  # the same four tokens in two events
    assert answer.tpot_s == pytest.approx(0.2)


def test_uncounted_events_share_the_answers_usage() -> None:
    answer = make_answer(0.0, [1.0, 2.0])
    answer.completion_tokens, answer.is_counted = 8, False
    assert answer.tokens_per_count == 4.0
    assert answer.tpot_s == pytest.approx(1.0 / (8 - 4))


def test_what_did_not_happen_has_no_latency() -> None:
    assert make_answer(0.0, [1.0]).tpot_s is None  # a single event
    nothing = StreamedAnswer()
    assert (nothing.ttft_s, nothing.e2e_s, nothing.tpot_s) == (None, None, None)


@pytest.mark.parametrize(
    ("start", "end", "tokens"), [(0.0, 9.0, 3), (1.0, 3.0, 2), (0.9, 2.9, 2), (3.0, 9.0, 0), (0.0, 0.5, 0)]
)
def test_tokens_count_where_their_event_falls_in_the_window(start: float, end: float, tokens: int) -> None:
    assert make_answer(0.0, [1.0, 2.0, 3.0]).count_between(start, end) == tokens
