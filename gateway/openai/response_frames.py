"""Text in, the Responses API's bytes out: a stream of numbered events, or the same stream folded into one response.

Constant bytes are encoded once per item, so a token costs one small dumps. The events and their order are those of
Open Responses' OpenAPI (2026-04-24) and of OpenAI's reference. Knows no tokens or HTTP.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from gateway.core import FinishReason
from gateway.errors import GatewayError
from gateway.language import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser
from gateway.openai.errors import error_event
from gateway.openai.response_items import seal
from gateway.wire.answer import ChoiceGroup, feed, flush
from gateway.wire.logprobs import Details

EVENT = b'event: %b\ndata: {"type":"%b","sequence_number":'
OPENING = 2  # events of `open`
OPEN = b',"completed_at":null,"incomplete_details":null,"error":null,"usage":null'
DONE = b"data: [DONE]\n\n"
NO_SCORES = b"[]"
TEXT, REASONING, CALL = "message", "reasoning", "function_call"
PREFIXES = {TEXT: "msg", REASONING: "rs", CALL: "fc"}
DELTAS = {
    TEXT: b"response.output_text",
    REASONING: b"response.reasoning_text",
    CALL: b"response.function_call_arguments",
}


@dataclass(slots=True)
class Shown:
    """What the frames of one answer are made from, afresh for each attempt.

    `head`: the response's constant fields, left open for the rest. `parser`: separates calls and reasoning from the
    text; None where there is but text. `seals`: reasoning is shown sealed too. `namespaces`: by the name that the model
    writes, a function's namespace and its name there. `keep`: takes the finished response, where it is kept. `clock`:
    returns Unix seconds. `count`: returns how many tokens the answer has so far.
    """

    request_id: str
    head: bytes
    group: ChoiceGroup
    details: Details
    parser: ReplyParser | None
    seals: bool
    namespaces: Mapping[str, tuple[str, str]]
    keep: Callable[[bytes], None] | None
    clock: Callable[[], float]
    count: Callable[[], int]
    reasoning_tokens: int = 0

    def note(self, kind: str) -> None:
        """Takes notice of what the tokens so far were for. Scores are shown for text alone."""
        if kind is REASONING:
            self.reasoning_tokens = self.count()
        if kind is not TEXT:
            self.details.take_logprobs()

    def take_scores(self) -> bytes:
        scores = self.details.scores
        return NO_SCORES if scores is None or not scores.has_new else scores.take()

    def response(self, status: bytes, output: Sequence[bytes], more: bytes) -> bytes:
        """Returns the response object. `more`: fields, with a comma before each."""
        return b'%b,"status":"%b","output":[%b]%b}' % (self.head, status, b",".join(output), more)

    def end(self, reason: FinishReason, output: Sequence[bytes], completion_tokens: int) -> tuple[bytes, bytes]:
        """Returns how the response ended, and its object."""
        self.group.close(completion_tokens)
        prompt_tokens = self.group.prompt_tokens
        counts = (prompt_tokens, completion_tokens, self.reasoning_tokens, prompt_tokens + completion_tokens)
        usage = (
            b',"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0},"output_tokens":%d,'
            b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}' % counts
        )
        if reason is FinishReason.LENGTH:
            details = b',"completed_at":null,"incomplete_details":{"reason":"max_output_tokens"},"error":null'
            return self._kept(b"incomplete", output, details + usage)
        details = b',"completed_at":%d,"incomplete_details":null,"error":null' % int(self.clock())
        return self._kept(b"completed", output, details + usage)

    def _kept(self, status: bytes, output: Sequence[bytes], more: bytes) -> tuple[bytes, bytes]:
        response = self.response(status, output, more)
        if self.keep is not None:
            self.keep(response)
        return status, response

    def item_id(self, kind: str, index: int) -> str:
        return f"{PREFIXES[kind]}_{self.request_id}{index:02x}"


class Item:
    """One item of the output as it grows: a message, reasoning or a call."""

    __slots__ = ("_call", "_kind", "_scores", "_shown", "id", "index", "pieces")

    def __init__(self, shown: Shown, kind: str, index: int, call: CallStart | None = None) -> None:
        self._shown = shown
        self._kind = kind
        self._call = call
        self.pieces: list[str] = []
        self._scores: list[bytes] = []
        self.index = index
        self.id = shown.item_id(kind, index)

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def scores(self) -> bytes:
        return b"[%b]" % b",".join(self._scores)

    def add(self, text: str, scores: bytes = NO_SCORES) -> None:
        self.pieces.append(text)
        if scores != NO_SCORES:
            self._scores.append(scores[1:-1])

    def part(self, text: str, scores: bytes) -> bytes:
        if self._kind is REASONING:
            return b'{"type":"reasoning_text","text":%b}' % orjson.dumps(text)
        values = (orjson.dumps(text), scores)
        return b'{"type":"output_text","text":%b,"annotations":[],"logprobs":%b}' % values

    def begun(self) -> bytes:
        """Returns the item before it has any text."""
        return self._encode(b"in_progress", b"[]", "")

    def ended(self, status: bytes) -> bytes:
        text = self.text
        content = b"[]" if self._kind is CALL else b"[%b]" % self.part(text, self.scores)
        return self._encode(status, content, text)

    def _encode(self, status: bytes, content: bytes, text: str) -> bytes:
        head = (self._kind.encode(), self.id.encode(), status)
        fields = b'{"type":"%b","id":"%b","status":"%b"' % head
        if self._kind is TEXT:
            return fields + b',"role":"assistant","content":%b}' % content
        if self._kind is REASONING:
            sealed = orjson.dumps(seal(text)) if self._shown.seals and text else b"null"
            return fields + b',"summary":[],"content":%b,"encrypted_content":%b}' % (content, sealed)
        call = self._call
        assert call is not None
        namespace, name = self._shown.namespaces.get(call.name, (None, call.name))
        place = b"" if namespace is None else b',"namespace":' + orjson.dumps(namespace)
        values = (orjson.dumps(call.call_id), orjson.dumps(name), place, orjson.dumps(text))
        return fields + b',"call_id":%b,"name":%b%b,"arguments":%b}' % values


class ResponseStream:
    """Server-sent events: each item of the output begins, grows and ends before the next one."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._is_plain = shown.parser is None and shown.details.scores is None
        self._number = OPENING  # of the next event; `open` is called when there is text already
        self._item: Item | None = None
        self._pieces: list[str] = []  # of that item
        self._output: list[bytes] = []
        self._before = self._middle = self._after = b""  # of the item's deltas

    def open(self) -> bytes:
        response = b'"response":' + self._shown.response(b"in_progress", (), OPEN)
        names = (b"response.created", b"response.in_progress")
        return b"".join([_event(name, number, response) for number, name in enumerate(names)])

    def text(self, text: str) -> bytes:
        item = self._item
        if self._is_plain and item is not None:  # nearly every token
            if not text:
                return b""
            number = self._number
            self._number = number + 1
            self._pieces.append(text)
            return self._before + str(number).encode() + self._middle + orjson.dumps(text) + self._after
        return b"".join([self._show(part) for part in feed(self._shown.parser, text)])

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        shown = self._shown
        rest = b"".join([self._show(part) for part in flush(shown.parser)])
        if self._item is None and not self._output:  # clients take a message for granted
            rest = self._begin(TEXT, None)
        rest += self._end(b"incomplete" if reason is FinishReason.LENGTH else b"completed")
        status, response = shown.end(reason, self._output, completion_tokens)
        return rest + self._event(b"response." + status, b'"response":' + response) + DONE

    def fail(self, error: GatewayError) -> bytes:
        fields = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        # Twice, at the top and in an object: of the clients there are, some look here and some there.
        shown = orjson.dumps({**fields, "error": fields} | {"type": "error"})[1:-1]
        failed = orjson.dumps({"code": "server_error", "message": error.message})
        more = b',"completed_at":null,"incomplete_details":null,"usage":null,"error":' + failed
        response = self._shown.response(b"failed", self._output, more)
        event = self._event(b"error", shown.replace(b'"type":"error",', b"", 1))
        return event + self._event(b"response.failed", b'"response":' + response) + DONE

    def _show(self, part: Part) -> bytes:
        item = self._item
        match part:
            case Content(text) | Reasoning(text):
                kind = TEXT if isinstance(part, Content) else REASONING
                opening = b""
                if item is None or item.kind is not kind:
                    opening = self._begin(kind, None)
                    item = self._item
                assert item is not None
                return opening + self._delta(item, text)
            case CallStart():
                return self._begin(CALL, part)
            case CallArguments(_, text):
                assert item is not None
                return self._delta(item, text)

    def _delta(self, item: Item, text: str) -> bytes:
        shown, scores = self._shown, NO_SCORES
        if shown.details.scores is not None and item.kind is TEXT:
            scores = shown.take_scores()
        elif item.kind is not TEXT:
            shown.note(item.kind)
        item.add(text, scores)
        self._number += 1
        if scores is NO_SCORES:
            return b"%b%d%b%b%b" % (self._before, self._number - 1, self._middle, orjson.dumps(text), self._after)
        values = (self._before, self._number - 1, self._middle, orjson.dumps(text), scores)
        return b'%b%d%b%b,"logprobs":%b}\n\n' % values

    def _begin(self, kind: str, call: CallStart | None) -> bytes:
        """Ends the item before, if there is one, and begins another."""
        ended = self._end(b"completed")
        self._item = item = Item(self._shown, kind, len(self._output), call)
        self._pieces = item.pieces
        place = b'"output_index":%d' % item.index
        begun = self._event(b"response.output_item.added", place + b',"item":' + item.begun())
        where = b'"item_id":"%b",%b' % (item.id.encode(), place)
        if kind is not CALL:
            where += b',"content_index":0'
            begun += self._event(b"response.content_part.added", where + b',"part":' + item.part("", NO_SCORES))
        name = DELTAS[kind] + b".delta"
        self._before = EVENT % (name, name)
        self._middle = b"," + where + b',"delta":'
        self._after = b',"logprobs":[]}\n\n' if kind is TEXT else b"}\n\n"
        return ended + begun

    def _end(self, status: bytes) -> bytes:
        item = self._item
        if item is None:
            return b""
        self._item = None
        kind, text, place = item.kind, orjson.dumps(item.text), b'"output_index":%d' % item.index
        where = b'"item_id":"%b",%b' % (item.id.encode(), place)
        if kind is TEXT and self._shown.details.scores is not None:
            item.add("", self._shown.take_scores())
        if kind is CALL:
            done = self._event(DELTAS[kind] + b".done", where + b',"arguments":' + text)
        else:
            where += b',"content_index":0'
            scores = b',"logprobs":' + item.scores if kind is TEXT else b""
            done = self._event(DELTAS[kind] + b".done", where + b',"text":' + text + scores)
            done += self._event(b"response.content_part.done", where + b',"part":' + item.part(item.text, item.scores))
        ended = item.ended(status)
        self._output.append(ended)
        return done + self._event(b"response.output_item.done", place + b',"item":' + ended)

    def _event(self, name: bytes, fields: bytes) -> bytes:
        self._number += 1
        return _event(name, self._number - 1, fields)


def _event(name: bytes, number: int, fields: bytes) -> bytes:
    return EVENT % (name, name) + b"%d,%b}\n\n" % (number, fields)


class ResponseFold:
    """A stream folded into one response: nothing is sent before the end."""

    content_type = b"application/json"

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._items: list[Item] = []

    def open(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        for part in feed(self._shown.parser, text):
            self._take(part)
        return b""

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        shown, items = self._shown, self._items
        for part in flush(shown.parser):
            self._take(part)
        if not items:
            self._begin(TEXT, None)
        if items[-1].kind is TEXT:
            items[-1].add("", shown.take_scores())
        cut = b"incomplete" if reason is FinishReason.LENGTH else b"completed"
        output = [*(item.ended(b"completed") for item in items[:-1]), items[-1].ended(cut)]
        return shown.end(reason, output, completion_tokens)[1]

    def fail(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _take(self, part: Part) -> None:
        items = self._items
        match part:
            case Content(text) | Reasoning(text):
                kind = TEXT if isinstance(part, Content) else REASONING
                if not items or items[-1].kind is not kind:
                    self._begin(kind, None)
                self._shown.note(kind)
                items[-1].add(text, self._shown.take_scores() if kind is TEXT else NO_SCORES)
            case CallStart():
                self._begin(CALL, part)
            case CallArguments(_, text):
                self._shown.note(CALL)
                items[-1].add(text)

    def _begin(self, kind: str, call: CallStart | None) -> None:
        self._items.append(Item(self._shown, kind, len(self._items), call))
