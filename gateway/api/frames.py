"""Text in, OpenAI's bytes out: a stream of server-sent events, or the same stream folded into one JSON object.

What does not change during an answer is encoded once, so a token costs one small dumps. Each choice has frames of its
own; what choices have in common is a Gathering. Knows no tokens, HTTP or time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson

from gateway.api.details import NULL, Details
from gateway.api.dialects import Head, Usage
from gateway.core import FinishReason
from gateway.language import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser

DONE = b"data: [DONE]\n\n"
TOOL_CALLS = b'"tool_calls"'


class Frames(Protocol):
    """A pipe from one choice's text to bytes; b"" where nothing is to be sent yet. `open` once, `text`s, `close` once.

    `close` of the last choice brings what ends the whole answer.
    """

    content_type: bytes
    is_stream: bool

    def open(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes: ...


class Gathering:
    """What the choices of one answer have in common: how many are still open, and what they used."""

    def __init__(self, choices: int, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._open = choices
        self._whole = [b""] * choices

    def close(self, completion_tokens: int) -> Usage | None:
        """One more choice is complete; what all of them used, once they are."""
        self._completion_tokens += completion_tokens
        self._open -= 1
        return None if self._open else Usage(self._prompt_tokens, self._completion_tokens)

    def keep(self, index: int, choice: bytes) -> None:
        self._whole[index] = choice

    def whole(self) -> bytes:
        return b",".join(self._whole)


class Stream:
    """Server-sent events exactly as OpenAI sends them, for a choice of which only the text is wanted."""

    content_type = b"text/event-stream; charset=utf-8"
    is_stream = True

    def __init__(self, head: Head, index: int, gathering: Gathering, *, include_usage: bool) -> None:
        self._dialect = dialect = head.dialect
        self._gathering = gathering
        self._include_usage = include_usage
        self._head = b"data: " + head.encode(dialect.chunk_object) + b',"choices":['
        self._before = self._head + b'{"index":%d,' % index
        self._after = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._before_text = self._before + dialect.text[0]
        self._after_text = dialect.text[1] + b',"logprobs":null,"finish_reason":null' + self._after

    def open(self) -> bytes:
        opening = self._dialect.opening
        return self._frame(opening) if opening else b""

    def text(self, text: str) -> bytes:
        return self._before_text + orjson.dumps(text) + self._after_text if text else b""

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        return self._frame(self._dialect.last, reason=orjson.dumps(reason)) + self._end(completion_tokens)

    def _frame(self, body: bytes, logprobs: bytes = NULL, reason: bytes = NULL, more: bytes = b"") -> bytes:
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b%b' % (self._before, body, logprobs, reason, more, self._after)

    def _end(self, completion_tokens: int) -> bytes:
        """After a choice's last chunk: what ends the answer, if no other choice is open."""
        usage = self._gathering.close(completion_tokens)
        if usage is None:
            return b""
        counts = self._head + b'],"usage":' + usage.encode() + b"}\n\n" if self._include_usage else b""
        return counts + DONE


@dataclass(frozen=True, slots=True)
class Show:
    """What one choice shows beside plain text, made afresh for each attempt.

    `parser`: tells calls and reasoning from its text. `is_one_call`: the first call is all. `names_calls`: an answer
    that called ends with `tool_calls`.
    `reasoning`: the field for it. `echo`: the prompt, in front of the text. `prompt_ids`: for the whole answer.
    `count`: what the choice has used so far, for every chunk.
    """

    details: Details
    parser: ReplyParser | None = None
    is_one_call: bool = False
    names_calls: bool = True
    reasoning: bytes = b"reasoning"
    echo: str = ""
    prompt_ids: Sequence[int] = ()
    count: Callable[[], Usage] | None = None

    def feed(self, text: str) -> Sequence[Part]:
        if self.parser is not None:
            return self._allow(self.parser.feed(text))
        return (Content(text),) if text else ()

    def flush(self) -> Sequence[Part]:
        return () if self.parser is None else self._allow(self.parser.flush())

    def _allow(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Without the calls that were not to be made in parallel; a model that is free to call is not held to it."""
        if not self.is_one_call:
            return parts
        return [part for part in parts if not isinstance(part, CallStart | CallArguments) or part.index == 0]

    def encode_reason(self, reason: FinishReason) -> bytes:
        """A model that ended by itself after calling tools waits for their results; one cut short does not."""
        has_called = self.parser is not None and self.parser.has_called and self.names_calls
        return TOOL_CALLS if has_called and reason is FinishReason.STOP else orjson.dumps(reason)

    def encode_prompt_ids(self) -> bytes:
        """A field of the whole answer, with a comma before it."""
        return b',"prompt_token_ids":' + orjson.dumps(list(self.prompt_ids)) if self.prompt_ids else b""


class DetailedStream(Stream):
    """A Stream that shows more than text. Details leave with the next chunk, and what is left of them with the last."""

    def __init__(self, head: Head, index: int, gathering: Gathering, show: Show, *, include_usage: bool) -> None:
        super().__init__(head, index, gathering, include_usage=include_usage)
        self._show = show

    def open(self) -> bytes:
        show = self._show
        if show.count is not None:  # the first token is there already, but no chunk has shown it
            self._count(Usage(show.count().prompt_tokens, 0))
        opening = super().open()
        if opening and show.prompt_ids:
            opening = opening.removesuffix(b"}\n\n") + show.encode_prompt_ids() + b"}\n\n"
        return opening + (self._chunk(self._body(Content(show.echo))) if show.echo else b"")

    def text(self, text: str) -> bytes:
        return b"".join([self._chunk(self._body(part)) for part in self._show.feed(text)])

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        rest = b"".join([self._chunk(self._body(part)) for part in self._show.flush()])
        last = self._chunk(self._dialect.last, self._show.encode_reason(reason))
        return rest + last + self._end(completion_tokens)

    def _chunk(self, body: bytes, reason: bytes = NULL) -> bytes:
        details = self._show.details
        if self._show.count is not None:
            self._count(self._show.count())
        return self._frame(body, details.take_logprobs(), reason, details.take_ids())

    def _count(self, usage: Usage) -> None:
        self._after = b'}],"usage":%b}\n\n' % usage.encode()

    def _body(self, part: Part) -> bytes:
        match part:
            case Content(text):
                before, after = self._dialect.text
                return before + orjson.dumps(text) + after
            case Reasoning(text):
                return b'"delta":{"%b":%b}' % (self._show.reasoning, orjson.dumps(text))
            case CallStart() | CallArguments():
                return b'"delta":{"tool_calls":[%b]}' % _encode_call_part(part)


class Fold:
    """The same stream as one object: nothing is sent before the end."""

    content_type = b"application/json"
    is_stream = False

    def __init__(self, head: Head, index: int, gathering: Gathering, show: Show | None = None) -> None:
        self._head = head
        self._index = index
        self._gathering = gathering
        self._show = show or Show(Details(None))
        self._parts: list[Part] = [Content(self._show.echo)] if self._show.echo else []

    def open(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        self._parts += self._show.feed(text)
        return b""

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        self._parts += self._show.flush()
        self._gathering.keep(self._index, self._choice(reason))
        usage = self._gathering.close(completion_tokens)
        if usage is None:
            return b""
        before = self._head.encode(self._head.dialect.object) + b',"choices":['
        after = b'],"usage":' + usage.encode() + self._show.encode_prompt_ids() + b"}"
        return before + self._gathering.whole() + after

    def _choice(self, reason: FinishReason) -> bytes:
        show = self._show
        logprobs, more = show.details.take_logprobs(), show.details.take_ids()
        values = (self._index, self._body(), logprobs, show.encode_reason(reason), more)
        return b'{"index":%d,%b,"logprobs":%b,"finish_reason":%b%b}' % values

    def _body(self) -> bytes:
        text = "".join([part.text for part in self._parts if isinstance(part, Content)])
        if not self._head.dialect.opening:  # a text completion has no message
            return b'"text":' + orjson.dumps(text)
        thought = "".join([part.text for part in self._parts if isinstance(part, Reasoning)])
        calls = _fold_calls(self._parts)
        message: dict[str, object] = {"role": "assistant", "content": text or (None if calls or thought else "")}
        message["refusal"] = None
        if thought:
            message[self._show.reasoning.decode()] = thought
        if calls:
            message["tool_calls"] = calls
        return b'"message":' + orjson.dumps(message)


def _encode_call_part(part: CallStart | CallArguments) -> bytes:
    match part:
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return orjson.dumps({"index": index, "id": call_id, "type": "function", "function": function})
        case CallArguments(index, text):
            return orjson.dumps({"index": index, "function": {"arguments": text}})


def _fold_calls(parts: Iterable[Part]) -> Sequence[dict[str, object]]:
    starts: dict[int, CallStart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        match part:
            case CallStart(index):
                starts[index], arguments[index] = part, []
            case CallArguments(index, text):
                arguments[index].append(text)
            case _:
                pass
    return [
        {
            "id": start.call_id,
            "type": "function",
            "function": {"name": start.name, "arguments": "".join(arguments[index])},
        }
        for index, start in sorted(starts.items())
    ]
