import json
from collections.abc import Mapping

import pytest

from loadtest.answer import Answer

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


def read(*chunks: Mapping[str, object], started_at: float = 10.0) -> Answer:
    """An answer whose chunks arrive one second apart, the first after one second."""
    answer = Answer()
    answer.begin(started_at)
    answer.head(200, {"x-crossover-backend": "vllm"})
    for second, chunk in enumerate(chunks, start=1):
        answer.body(event(chunk), started_at + second)
    answer.body(DONE, started_at + len(chunks) + 1)
    answer.end()
    return answer


def test_a_whole_answer_has_token_times_usage_reason_and_backend() -> None:
    answer = read(ROLE, text("Hel"), text("lo"), finish(), usage(2))
    assert (answer.times, answer.counts) == ([12.0, 13.0], [1, 2])
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2)
    assert (answer.finish_reason, answer.backend) == ("length", "vllm")
    assert answer.is_complete
    assert answer.error is None


def test_role_alone_is_not_the_first_token() -> None:
    assert read(ROLE, text("a"), finish(), usage(1)).times[0] == 12.0


@pytest.mark.parametrize("key", ["content", "reasoning_content", "tool_calls"])
def test_any_generated_delta_is_a_token(key: str) -> None:
    assert read({"choices": [{"delta": {key: "x"}}]}, finish(), usage(1)).times == [11.0]


def test_completions_chunks_are_understood() -> None:
    assert read(
        {"choices": [{"text": "a"}]}, {"choices": [{"text": "", "finish_reason": "length"}]}, usage(1)
    ).times == [11.0]


def test_the_answer_ends_with_its_finish_reason_not_with_usage() -> None:
    assert read(text("a"), finish(), usage(1)).finished_at == 12.0


def test_counts_are_the_servers_own_where_every_event_has_usage() -> None:
    answer = read(text("a", 1), text("", 2), text("bcd", 5), finish(), usage(5))
    assert answer.counts == [1, 2, 5]
    assert answer.is_counted


def test_usage_at_the_end_does_not_pass_for_a_token() -> None:
    answer = read(text("a"), text("b"), finish() | {"usage": {"prompt_tokens": 5, "completion_tokens": 3}})
    assert (answer.counts, answer.is_counted, answer.completion_tokens) == ([1, 2], False, 3)


def test_an_answer_without_text_has_its_tokens_at_its_end() -> None:
    answer = read(ROLE, finish(), usage(4))
    assert (answer.times, answer.counts) == ([12.0], [4])


@pytest.mark.parametrize("cut", range(1, 60, 7))
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_bytes_may_be_cut_anywhere(cut: int, newline: bytes) -> None:
    stream = b"".join(map(event, (ROLE, text("é"), text("b"), finish(), usage(2)))) + DONE
    stream = stream.replace(b"\n", newline)
    answer = Answer()
    answer.head(200, {})
    for start in range(0, len(stream), cut):
        answer.body(stream[start : start + cut], float(start))
    answer.end()
    assert (answer.counts, answer.completion_tokens, answer.finish_reason) == ([1, 2], 2, "length")


def test_an_error_event_is_the_answers_error() -> None:
    assert read(text("a"), {"error": {"message": "engine died"}}).error == "engine died"


def test_what_is_not_json_is_an_error() -> None:
    answer = Answer()
    answer.head(200, {})
    answer.body(b"data: {oops\n\n", 1.0)
    answer.end()
    assert answer.error == "an event of the stream is not JSON"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model"}}', "HTTP 404: no such model"),
        (b"<html>nginx</html>", "HTTP 404: <html>nginx</html>"),
        (b"", "HTTP 404: no body"),
    ],
)
def test_a_status_other_than_200_is_an_error_with_the_servers_words(body: bytes, message: str) -> None:
    answer = Answer()
    answer.head(404, {})
    answer.body(body, 1.0)
    answer.end()
    assert answer.error == message
    assert not answer.is_complete


def test_a_stream_without_usage_is_not_complete() -> None:
    assert not read(text("a"), finish()).is_complete
