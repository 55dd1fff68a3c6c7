"""One request over a real socket, and whether its answer is of a declared shape.

In: a Sent. Out: a Received, or an AssertionError that names what is wrong.
"""

import http.client
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from deploy.stacks import MODEL
from gateway.anthropic.messages import MessagesRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.responses import ResponsesRequest
from gateway.wire.body import Body
from tests.fuzz import message_shapes, response_shapes, shapes
from tests.named_events import fold_message, fold_response, read_named

PATIENCE_S = 50.0
IDLE_S = 2.0  # uvicorn closes a connection after five seconds
SENT_SHOWN = 2000
EVENTS = "text/event-stream; charset=utf-8"
JSON = "application/json"
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")

WHOLE: Mapping[str, type[shapes.Shape]] = {
    "/v1/chat/completions": shapes.ChatCompletion,
    "/v1/completions": shapes.TextCompletion,
    "/tokenize": shapes.Tokenized,
    "/detokenize": shapes.Detokenized,
    "/v1/models": shapes.Models,
    "/v1/models/": shapes.Models,
    "/v1/messages": message_shapes.Message,
    "/v1/messages/count_tokens": message_shapes.Counted,
    "/v1/responses": response_shapes.Response,
}
CHUNKS: Mapping[str, type[shapes.ChatChunk | shapes.TextChunk]] = {
    "/v1/chat/completions": shapes.ChatChunk,
    "/v1/completions": shapes.TextChunk,
}


# Of named events, what they add up to; each has the shape of the answer that is not streamed.
FOLDS: Mapping[str, Callable[[Sequence[dict[str, Any]]], dict[str, Any]]] = {  # Any: JSON
    "/v1/messages": fold_message,
    "/v1/responses": fold_response,
}
BODIES: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/responses": ResponsesRequest,
}


@dataclass(frozen=True, slots=True)
class Sent:
    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"{self.method} {self.target} {dict(self.headers or {})} {self.body[:SENT_SHOWN]!r}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Received:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def __repr__(self) -> str:
        return f"{self.status} {dict(self.headers)} {self.body[:SENT_SHOWN]!r}"


class Caller:
    """A client that keeps its connection, and counts its answers."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        self._used = 0.0
        self.answered: Counter[tuple[str, int]] = Counter()
        """By path and status."""

    def send(self, sent: Sent) -> Received:
        if time.monotonic() - self._used > IDLE_S:
            self._connection.close()
        try:
            self._connection.request(sent.method, sent.target, sent.body, dict(sent.headers or {}))
            response = self._connection.getresponse()
            received = Received(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (http.client.HTTPException, OSError) as exc:
            self._connection.close()
            raise AssertionError(f"no answer: {exc!r}") from exc
        self._used = time.monotonic()
        self.answered[sent.path, received.status] += 1
        return received

    def close(self) -> None:
        self._connection.close()


def check(sent: Sent, received: Received) -> None:
    """Raises AssertionError."""
    if sent.method == "HEAD":  # it has no body
        _expect(received.status < 500, f"a status of {received.status}")
        return
    _expect(len(received.headers.get("x-request-id", "")) == 32, "no x-request-id")
    if received.status < 500 and _is_relayed(sent, received):
        return  # the engine's own answer
    if received.status != 200:
        _check_error(sent, received)
    elif sent.path in FOLDS and received.headers.get("content-type") == EVENTS:
        _check_named(sent, received)
    elif received.headers.get("content-type") == EVENTS:
        _check_stream(sent, received)
    else:
        _check_whole(sent, received)


def _is_relayed(sent: Sent, received: Received) -> bool:
    """Whether the client's own body went to an engine: only that engine knows what a right answer is."""
    if "x-crossover-backend" not in received.headers:
        return False
    body = BODIES.get(sent.path)
    return sent.path not in WHOLE or (body is not None and body.find_relay_field(json.loads(sent.body)) is not None)


def _expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def parse(raw: bytes | str) -> Any:  # Any: JSON
    """As strict as JSON is: UTF-8, no key twice, no NaN."""

    def no_key_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        _expect(len(set(keys)) == len(keys), f"a key twice among {keys}")
        return dict(pairs)

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = raw if isinstance(raw, str) else raw.decode()
    return json.loads(text, object_pairs_hook=no_key_twice, parse_constant=no_constant)


def _fits(shape: type[shapes.Shape], raw: bytes | str) -> Any:  # Any: one of that shape
    try:
        return shape.model_validate(parse(raw))
    except (ValidationError, ValueError) as exc:
        raise AssertionError(f"no {shape.__name__}: {exc}") from exc


def _check_error(sent: Sent, received: Received) -> None:
    _expect(received.status in shapes.CODES, f"a status of {received.status}")
    _expect(received.headers.get("content-type") == JSON, "an error that is not JSON")
    if sent.path in MESSAGES:
        kind = _fits(message_shapes.Error, received.body).error.type
        _expect(kind == message_shapes.TYPES[received.status], f"type {kind} with {received.status}")
        return
    error = _fits(shapes.Error, received.body).error
    _expect(error.code in shapes.CODES[received.status], f"code {error.code} with {received.status}")


def _check_whole(sent: Sent, received: Received) -> None:
    _expect(received.headers.get("content-type") == JSON, f"content of type {received.headers.get('content-type')}")
    answer = _fits(WHOLE.get(sent.path, shapes.Model), received.body)
    if sent.path in FOLDS:
        _check_one(sent, answer)
    if sent.path in CHUNKS:
        asked = json.loads(sent.body)
        _expect(not asked.get("stream"), "one object for a stream")
        _expect([choice.index for choice in answer.choices] == list(range(_count(asked))), "other choices than asked")
        _expect(answer.model == asked["model"], "another model")
        _check_optional(asked, answer, *answer.choices)


def _check_named(sent: Sent, received: Received) -> None:
    _expect(json.loads(sent.body).get("stream") is True, "a stream that nobody asked for")
    folded = FOLDS[sent.path](read_named(received.body))
    _check_one(sent, _fits(WHOLE[sent.path], json.dumps(folded)), stream=True)


def _check_one(sent: Sent, answer: Any, *, stream: bool = False) -> None:  # Any: a Message or a Response
    asked = json.loads(sent.body)
    _expect(stream == (asked.get("stream") is True), "one object for a stream")
    named = asked.get("model")
    only = MODEL if sent.path == "/v1/responses" else None  # which a request there may leave out
    _expect(answer.model == (only if named is None else named), "another model")


def _check_optional(asked: Mapping[str, Any], *parts: shapes.Shape) -> None:  # Any: JSON
    """Token ids and log-probabilities are there only where the body asks for them."""
    logprobs = asked.get("logprobs")
    for one in parts:
        ids = one.model_fields_set & {"token_ids", "prompt_token_ids"}
        _expect(not ids or asked.get("return_token_ids"), "ids nobody asked for")
        wants_scores = logprobs is not None and logprobs is not False  # 0 asks for those of the tokens taken alone
        _expect(getattr(one, "logprobs", None) is None or wants_scores, "log-probabilities nobody asked for")


def _count(asked: Mapping[str, Any]) -> int:  # Any: JSON
    """The choices that a body asks for."""
    prompt = asked.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return prompts * int(asked.get("n") or 1)


# A stream.


def _check_stream(sent: Sent, received: Received) -> None:
    asked = json.loads(sent.body)
    _expect(asked.get("stream") is True, "a stream that nobody asked for")
    chunks = [_fits(CHUNKS[sent.path], event) for event in _events(received.body)]
    heads = {(chunk.id, chunk.created, chunk.model) for chunk in chunks}
    _expect(len(heads) == 1, f"chunks of several answers: {heads}")
    _check_usage(asked, chunks)
    by_choice: dict[int, list[Any]] = defaultdict(list)  # Any: ChatChunkChoice or TextChunkChoice
    for chunk in chunks:
        for choice in chunk.choices:
            by_choice[choice.index].append(choice)
    _expect(set(by_choice) == set(range(_count(asked))), f"choices {sorted(by_choice)}, not those asked for")
    _check_optional(asked, *chunks)
    for choices in by_choice.values():
        _check_choice(asked, choices)


def _events(body: bytes) -> Sequence[str]:
    *events, rest = body.decode().split("\n\n")
    _expect(rest == "", "an event that does not end")
    _expect(events and events.pop() == "data: [DONE]", "no [DONE] at the end")
    _expect(all(event.startswith("data: ") and "\n" not in event for event in events), "an event of another form")
    return [event.removeprefix("data: ") for event in events]


def _check_usage(asked: Mapping[str, Any], chunks: Sequence[shapes.Chunk]) -> None:  # Any: JSON
    options = asked.get("stream_options") or {}
    wanted = bool(options.get("include_usage"))
    everywhere = wanted and bool(options.get("continuous_usage_stats"))
    *others, last = chunks
    _expect(wanted == (not getattr(last, "choices", None)), "usage at the end, or none, against what was asked")
    _expect(wanted == (last.usage is not None), "the last chunk's usage")
    _expect(all(("usage" in chunk.model_fields_set) == wanted for chunk in chunks), "usage against what was asked")
    for chunk in others:
        _expect(everywhere == (chunk.usage is not None), "usage before the end, or none, against what was asked")
        _expect(getattr(chunk, "choices", None), "a chunk without a choice before the end")


def _check_choice(asked: Mapping[str, Any], choices: Sequence[Any]) -> None:  # Any: JSON; choices of chunks
    *others, last = choices
    _expect(last.finish_reason is not None, "a choice that does not finish")
    _expect(all(choice.finish_reason is None for choice in others), "a choice that goes on after its end")
    _check_optional(asked, *choices)
    if hasattr(last, "delta"):
        opens = [isinstance(choice.delta, shapes.Opening | shapes.CallOpening) for choice in choices]
        _expect(opens == [True] + [False] * len(others), "a role anywhere but in the first chunk")
        _expect(isinstance(last.delta, shapes.Nothing), "a last chunk that holds more")
