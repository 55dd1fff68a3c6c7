"""Log-probabilities from vLLM: which token an entry of its events belongs to, and when a sink gets it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.backends.calls import End
from gateway.backends.vllm import VLLMBackend
from gateway.backends.vllm_json import COMPLETIONS, GENERATE
from gateway.backends.vllm_scores import ScoredEventReader
from gateway.core import FinishReason, GenerateRequest, Prompt, TokenLogprob
from gateway.errors import BackendProtocolError, BackendUnavailable
from tests.backends.conftest import END_ID, REQUEST
from tests.fakes.script import EndToken, Fault, Say
from tests.fakes.sink import RecordingSink, settled
from tests.fakes.vllm import FakeVLLM, scored

PROMPT = REQUEST.prompt.token_ids


def asking(logprobs: int | None = None, prompt_logprobs: int | None = None) -> GenerateRequest:
    return replace(REQUEST, params=replace(REQUEST.params, logprobs=logprobs, prompt_logprobs=prompt_logprobs))


def event(token_ids: Sequence[int], logprobs: object, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": "x", "logprobs": logprobs, "finish_reason": finish_reason, "token_ids": token_ids}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def logprobs_of(*tokens: tuple[int, float | None, dict[int, float] | None]) -> dict[str, Any]:
    """Log-probabilities in vLLM's form: the token itself is the first of its alternatives."""
    return {
        "tokens": [f"token_id:{token_id}" for token_id, _, _ in tokens],
        "token_logprobs": [logprob for _, logprob, _ in tokens],
        "top_logprobs": [
            None if top is None else {f"token_id:{token_id}": value for token_id, value in top.items()}
            for _, _, top in tokens
        ],
        "text_offset": [0 for _ in tokens],
    }


def read(answer: ScoredEventReader, data: bytes) -> tuple[list[list[TokenLogprob]], list[int], End | None]:
    groups = list(answer.scores(data))
    token_ids, end = answer.read(data)
    return groups, list(token_ids), end


@pytest.mark.parametrize(
    ("count", "top"),
    [
        (0, ()),
        (1, ((8, -0.5),)),
        (2, ((8, -0.5), (9, -1.0))),
        (3, ((8, -0.5), (9, -1.0), (5, -3.0))),  # the third entry is there only because it is the chosen token
    ],
)
def test_alternatives_are_the_most_probable_in_order_without_the_token_for_its_own_sake(
    count: int, top: tuple[tuple[int, float], ...]
) -> None:
    answer = ScoredEventReader("vllm", asking(logprobs=count))
    data = event([5], logprobs_of((5, -3.0, {5: -3.0, 8: -0.5, 9: -1.0})))
    assert read(answer, data) == ([[TokenLogprob(5, -3.0, top)]], [5], None)


def test_a_long_prompts_scores_are_read() -> None:
    """An event of megabytes, a size that the request allows."""
    ids = [number % 1000 for number in range(20_000)]
    asked = replace(asking(logprobs=5, prompt_logprobs=5), prompt=Prompt(tuple(ids)))
    choice = {
        "index": 0, "text": "word " * 20_001, "logprobs": scored([*ids, 5], 5, unscored=1), "finish_reason": "length",
        "token_ids": [5], "prompt_token_ids": ids,
    }  # fmt: skip
    answer = ScoredEventReader("vllm", asked)
    heard = list(answer.scores(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"))
    assert [len(entries) for entries in heard] == [500] * 40 + [1]
    assert answer.read(b"") == ([5], FinishReason.LENGTH)


def test_a_prompt_comes_first_and_its_first_token_has_no_log_probability() -> None:
    answer = ScoredEventReader("vllm", asking(logprobs=1, prompt_logprobs=0))
    prompt = [(PROMPT[0], None, None), (PROMPT[1], -1.0, {PROMPT[1]: -1.0}), (PROMPT[2], -2.0, {PROMPT[2]: -2.0})]
    first = event([5], logprobs_of(*prompt, (5, -0.5, {5: -0.5})))
    assert read(answer, first) == (
        [
            [TokenLogprob(PROMPT[0], None), TokenLogprob(PROMPT[1], -1.0), TokenLogprob(PROMPT[2], -2.0)],
            [TokenLogprob(5, -0.5, ((5, -0.5),))],
        ],
        [5],
        None,
    )
    later = event([6], logprobs_of((6, -1.5, {6: -1.5})), "stop")
    assert read(answer, later) == ([[TokenLogprob(6, -1.5, ((6, -1.5),))]], [6], FinishReason.STOP)


def test_of_a_prompt_alone_the_answers_are_left_out() -> None:
    answer = ScoredEventReader(
        "vllm", replace(asking(prompt_logprobs=2), prompt=replace(REQUEST.prompt, token_ids=(7,)))
    )
    groups, token_ids, end = read(answer, event([5], logprobs_of((7, None, None), (5, -0.5, {5: -0.5})), "length"))
    assert (groups, token_ids, end) == ([[TokenLogprob(7, None)]], [5], FinishReason.LENGTH)


def test_events_that_come_together_are_one_piece_of_news_however_they_are_cut() -> None:
    wire = b"".join(
        event(token_ids, scored(token_ids, 2), reason)
        for token_ids, reason in (([5], None), ([6, 7], None), ([], None), ([8], "stop"))
    )
    for at in range(len(wire)):
        answer = ScoredEventReader("vllm", asking(logprobs=2))
        first, first_ids, _ = read(answer, wire[:at])
        rest, rest_ids, end = read(answer, wire[at:])
        assert (first_ids + rest_ids, end) == ([5, 6, 7, 8], FinishReason.STOP)
        for groups, token_ids in ((first, first_ids), (rest, rest_ids)):
            assert [entry.token_id for group in groups for entry in group] == token_ids


def test_the_scores_of_a_repeated_token_are_delivered_again() -> None:
    answer = ScoredEventReader("vllm", asking(logprobs=0))
    same = event([5], logprobs_of((5, 0.0, {5: 0.0})))
    for _ in range(3):
        assert read(answer, same) == ([[TokenLogprob(5, 0.0)]], [5], None)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        logprobs_of((5, -0.5, {5: -0.5}), (6, -0.5, {6: -0.5})),
        {**logprobs_of((5, -0.5, {5: -0.5})), "tokens": ["five"]},
        {**logprobs_of((5, -0.5, {5: -0.5})), "tokens": ["5"]},
        {**logprobs_of((5, -0.5, {5: -0.5})), "tokens": [5]},
        {**logprobs_of((5, -0.5, {5: -0.5})), "token_logprobs": []},
    ],
)
def test_log_probabilities_that_cannot_be_read_are_a_protocol_error(logprobs: object) -> None:
    answer = ScoredEventReader("vllm", asking(logprobs=0))
    assert type(read(answer, event([5], logprobs))[2]) is BackendProtocolError


def test_a_server_that_does_not_echo_is_a_protocol_error() -> None:
    answer = ScoredEventReader("vllm", asking(prompt_logprobs=0))
    assert type(read(answer, event([5], logprobs_of((5, -0.5, {5: -0.5}))))[2]) is BackendProtocolError


def test_an_end_without_a_reason_is_what_it_is_elsewhere() -> None:
    assert type(read(ScoredEventReader("vllm", asking(logprobs=0)), b"data: [DONE]\n\n")[2]) is BackendUnavailable


# On a socket.


class Listener(RecordingSink):
    """Records the calls in their order. With `cancels` it cancels at the first scores."""

    def __init__(self, *, cancels: bool = False) -> None:
        super().__init__()
        self.words: list[tuple[str, list[int]]] = []
        self._cancels = cancels

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        super().scores(entries)
        self.words.append(("scores", [entry.token_id for entry in entries]))
        if self._cancels:
            self.cancel()

    def tokens(self, token_ids: Sequence[int]) -> None:
        super().tokens(token_ids)
        self.words.append(("tokens", list(token_ids)))


def ask(backend: VLLMBackend, request: GenerateRequest, *, cancels: bool = False) -> Listener:
    sink = Listener(cancels=cancels)
    sink.call = backend.start(request, sink)
    return sink


async def test_scores_come_just_before_their_tokens_and_the_prompts_once_before_all(
    served: tuple[FakeVLLM, VLLMBackend],
) -> None:
    engine, backend = served
    engine.play(Say((5, 6)), Say((7,)), EndToken())
    sink = ask(backend, asking(logprobs=1, prompt_logprobs=1))
    assert await sink.ended() is FinishReason.STOP
    assert sink.breaches == []
    heard = [word for word, _ in sink.words]
    assert heard[:2] == ["scores", "scores"]
    assert sink.words[0] == ("scores", list(PROMPT))
    assert heard[1:] == ["scores", "tokens"] * (len(heard[1:]) // 2)
    for (_, scored_ids), (_, token_ids) in zip(sink.words[1::2], sink.words[2::2], strict=True):
        assert scored_ids == token_ids
    assert sink.token_ids == [5, 6, 7, END_ID]


LONG = tuple(number % 1000 for number in range(1700))


def long_request() -> GenerateRequest:
    return replace(asking(logprobs=0, prompt_logprobs=0), prompt=Prompt(LONG))


async def test_a_long_prompts_scores_come_in_turns_and_everything_else_after_them(
    served: tuple[FakeVLLM, VLLMBackend],
) -> None:
    engine, backend = served
    engine.play(Say((5, 6)), Say((7,)), EndToken())
    sink, other = ask(backend, long_request()), ask(backend, asking(logprobs=0))
    assert await sink.ended() is FinishReason.STOP
    assert await other.ended() is FinishReason.STOP
    assert (sink.breaches, other.breaches) == ([], [])
    assert [len(ids) for word, ids in sink.words if word == "scores"][:4] == [500, 500, 500, 200]
    assert [token_id for word, ids in sink.words if word == "scores" for token_id in ids] == [*LONG, 5, 6, 7, END_ID]
    assert sink.token_ids == [5, 6, 7, END_ID]
    await settled(lambda: len(backend.calls) == 0, "nothing left of the calls")


async def test_a_client_that_leaves_amid_a_long_prompts_scores_hears_no_more(
    served: tuple[FakeVLLM, VLLMBackend],
) -> None:
    engine, backend = served
    engine.play(Say((5, 6)), EndToken())
    sink = ask(backend, long_request(), cancels=True)
    await settled(lambda: bool(sink.words), "the first scores")
    await settled(lambda: len(backend.calls) == 0, "nothing left of the call")
    assert [(word, len(ids)) for word, ids in sink.words] == [("scores", 500)]
    assert sink.breaches == []


async def test_log_probabilities_go_by_completions_whatever_the_backend_prefers(
    served: tuple[FakeVLLM, VLLMBackend],
) -> None:
    engine, backend = served
    assert await backend.is_ready()
    await ask(backend, asking(logprobs=0)).ended()
    await ask(backend, asking(prompt_logprobs=0)).ended()
    sink = ask(backend, REQUEST)
    await sink.ended()
    assert engine.paths[-3:] == [COMPLETIONS, COMPLETIONS, GENERATE]
    assert sink.entries == []


async def test_a_sink_may_cancel_from_inside_scores(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.play(Say((5,)), Say((6,)), EndToken())
    sink = ask(backend, asking(logprobs=0, prompt_logprobs=0), cancels=True)
    await settled(lambda: bool(sink.entries), "scores received")
    await settled(lambda: len(backend.calls) == 0, repr(backend))
    assert [word for word, _ in sink.words] == ["scores"]
    assert sink.breaches == []


async def test_an_error_before_the_first_token_is_the_same_as_elsewhere(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.play(Fault("busy"))
    assert isinstance(await ask(backend, asking(logprobs=0)).ended(), BackendUnavailable)
