"""Text in, OpenAI's bytes out: a stream of server-sent events, or the same stream folded into one JSON object.

Constant bytes are encoded once per answer, so a token costs one small dumps. Each choice has frames of its own; what
the choices share is a ChoiceGroup. Knows no tokens, HTTP or time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import orjson

from gateway.core import FinishReason
from gateway.errors import GatewayError
from gateway.language import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser
from gateway.openai.errors import error_event
from gateway.wire.answer import ChoiceGroup, Usage, feed, flush
from gateway.wire.logprobs import NULL, Details

DONE = b"data: [DONE]\n\n"
TOOL_CALLS = b'"tool_calls"'
CALL_OPENING = b'"delta":{"role":"assistant","content":null,"tool_calls":[%b],"refusal":null}'


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an endpoint spells a choice: the constant bytes around what changes.

    `opening`, `last`: a choice's first and last chunk. `text`: the bytes before and after a chunk's text.

    `chunk_object`, `object`: the type's name, streamed and whole.
    """

    id_prefix: str
    object: str
    chunk_object: str
    opening: bytes
    text: tuple[bytes, bytes]
    last: bytes


CHAT = Dialect(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":"","refusal":null}',
    text=(b'"delta":{"content":', b"}"),
    last=b'"delta":{}',
)
TEXT_COMPLETION = Dialect(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    opening=b"",
    text=(b'"text":', b""),
    last=b'"text":""',
)


def encode_usage(usage: Usage) -> bytes:
    total = usage.prompt_tokens + usage.completion_tokens
    counts = (usage.prompt_tokens, usage.completion_tokens, total)
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % counts


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The fields that every object of one answer begins with; `created` is in Unix seconds."""

    dialect: Dialect
    request_id: str
    created: int
    model: str

    def encode(self, kind: str) -> bytes:
        fields = {
            "id": self.dialect.id_prefix + self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }
        return orjson.dumps(fields)[:-1]  # left open for `choices`


class Stream:
    """Server-sent events exactly as OpenAI sends them, for a choice with nothing but text."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, head: AnswerHead, index: int, group: ChoiceGroup, *, include_usage: bool) -> None:
        self._dialect = dialect = head.dialect
        self._group = group
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

    def fail(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _frame(self, body: bytes, logprobs: bytes = NULL, reason: bytes = NULL, more: bytes = b"") -> bytes:
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b%b' % (self._before, body, logprobs, reason, more, self._after)

    def _end(self, completion_tokens: int) -> bytes:
        """Returns what follows a choice's last chunk: the answer's end, if no other choice is open."""
        usage = self._group.close(completion_tokens)
        if usage is None:
            return b""
        counts = self._head + b'],"usage":' + encode_usage(usage) + b"}\n\n" if self._include_usage else b""
        return counts + DONE


@dataclass(frozen=True, slots=True)
class Extras:
    """What one choice shows beside plain text, made afresh for each attempt.

    `parser`: separates calls and reasoning from the text. `names_calls`: an answer with calls ends with `tool_calls`.
    `may_call`: the answer may begin with a call. `reasoning`: the field for reasoning. `echo`: the prompt, in front of
    the text. `prompt_ids`: for the whole answer. `count`: returns what the choice has used so far, for every chunk.
    """

    details: Details
    parser: ReplyParser | None = None
    names_calls: bool = True
    may_call: bool = False
    reasoning: bytes = b"reasoning"
    echo: str = ""
    prompt_ids: Sequence[int] = ()
    count: Callable[[], Usage] | None = None

    def encode_reason(self, reason: FinishReason) -> bytes:
        """Returns `tool_calls` if a model ended by itself after calls: it waits for results, one cut short does not."""
        has_called = self.parser is not None and self.parser.has_called and self.names_calls
        return TOOL_CALLS if has_called and reason is FinishReason.STOP else orjson.dumps(reason)

    def encode_prompt_ids(self) -> bytes:
        """Returns a field of the whole answer, with a comma before it."""
        return b',"prompt_token_ids":' + orjson.dumps(list(self.prompt_ids)) if self.prompt_ids else b""


class DetailedStream(Stream):
    """A Stream with Extras. Details leave with the next chunk, and the remaining ones with the last.

    An answer that may begin with a call waits for its first part: a call has no content before it, not even an empty
    one, because clients would show that as a text.
    """

    def __init__(
        self, head: AnswerHead, index: int, group: ChoiceGroup, extras: Extras, *, include_usage: bool
    ) -> None:
        super().__init__(head, index, group, include_usage=include_usage)
        self._extras = extras
        self._waits = extras.may_call

    def open(self) -> bytes:
        return b"" if self._extras.may_call else self._open()

    def _open(self) -> bytes:
        opening, echo = self._dialect.opening, self._extras.echo
        first = self._first(opening) if opening else b""
        return first + (self._chunk(self._body(Content(echo))) if echo else b"")

    def text(self, text: str) -> bytes:
        return b"".join([self._show(part) for part in feed(self._extras.parser, text)])

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        rest = b"".join([self._show(part) for part in flush(self._extras.parser)])
        if self._waits:
            rest = self._open()
        last = self._chunk(self._dialect.last, self._extras.encode_reason(reason))
        return rest + last + self._end(completion_tokens)

    def _show(self, part: Part) -> bytes:
        if not self._waits:
            return self._chunk(self._body(part))
        self._waits = False
        if isinstance(part, CallStart):
            return self._first(CALL_OPENING % _encode_call_part(part))
        return self._open() + self._chunk(self._body(part))

    def _first(self, body: bytes) -> bytes:
        """Returns the first chunk, which counts no token: those that are there have not been shown."""
        extras = self._extras
        if extras.count is not None:
            self._count(Usage(extras.count().prompt_tokens, 0))
        chunk = self._frame(body)
        return chunk.removesuffix(b"}\n\n") + extras.encode_prompt_ids() + b"}\n\n" if extras.prompt_ids else chunk

    def _chunk(self, body: bytes, reason: bytes = NULL) -> bytes:
        details = self._extras.details
        if self._extras.count is not None:
            self._count(self._extras.count())
        return self._frame(body, details.take_logprobs(), reason, details.take_ids())

    def _count(self, usage: Usage) -> None:
        self._after = b'}],"usage":%b}\n\n' % encode_usage(usage)

    def _body(self, part: Part) -> bytes:
        match part:
            case Content(text):
                before, after = self._dialect.text
                return before + orjson.dumps(text) + after
            case Reasoning(text):
                return b'"delta":{"%b":%b}' % (self._extras.reasoning, orjson.dumps(text))
            case CallStart() | CallArguments():
                return b'"delta":{"tool_calls":[%b]}' % _encode_call_part(part)


class Fold:
    """A stream folded into one JSON object: nothing is sent before the end."""

    content_type = b"application/json"

    def __init__(self, head: AnswerHead, index: int, group: ChoiceGroup, extras: Extras | None = None) -> None:
        self._head = head
        self._index = index
        self._group = group
        self._extras = extras or Extras(Details(None))
        self._parts: list[Part] = [Content(self._extras.echo)] if self._extras.echo else []

    def open(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        self._parts += feed(self._extras.parser, text)
        return b""

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        self._parts += flush(self._extras.parser)
        self._group.keep(self._index, self._choice(reason))
        usage = self._group.close(completion_tokens)
        if usage is None:
            return b""
        before = self._head.encode(self._head.dialect.object) + b',"choices":['
        after = b'],"usage":' + encode_usage(usage) + self._extras.encode_prompt_ids() + b"}"
        return before + self._group.whole() + after

    def fail(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _choice(self, reason: FinishReason) -> bytes:
        extras = self._extras
        logprobs, more = extras.details.take_logprobs(), extras.details.take_ids()
        values = (self._index, self._body(), logprobs, extras.encode_reason(reason), more)
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
            message[self._extras.reasoning.decode()] = thought
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
