"""Text in, Anthropic's bytes out: a stream of named events, or the same stream folded into one message.

Constant bytes are encoded once per block, so a token costs one small dumps. Knows no tokens, HTTP or time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import orjson

from gateway.anthropic.errors import error_event
from gateway.core import FinishReason
from gateway.errors import GatewayError
from gateway.language import CallArguments, CallStart, Content, Part, Reasoning, ReplyParser
from gateway.wire.answer import ChoiceGroup, feed, flush

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
BEGIN = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:'
AFTER = b"}}\n\n"
END = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'

# How a delta of a block begins.
TEXT, THINKING, CALL = b'"text_delta","text"', b'"thinking_delta","thinking"', b'"input_json_delta","partial_json"'
SIGNATURE = b'"signature_delta","signature"'


@dataclass(frozen=True, slots=True)
class Shown:
    """What the frames of one answer are made from, afresh for each attempt.

    `parser`: separates calls and reasoning from the text; None where there is but text. `find_stop`: returns the stop
    sequence that ended the answer, if one did.
    """

    request_id: str
    model: str
    group: ChoiceGroup
    parser: ReplyParser | None
    find_stop: Callable[[], str | None]

    def encode_head(self) -> bytes:
        """Returns a message's first fields, left open for the rest."""
        fields = {"id": f"msg_{self.request_id}", "type": "message", "role": "assistant", "model": self.model}
        return orjson.dumps(fields)[:-1]

    def encode_reason(self, reason: FinishReason, last_call: str | None) -> bytes:
        """Returns the fields that show why the answer ended. `last_call`: the arguments of its last call, if any.

        A call that a stop sequence has cut short must not be made; one before it was meant.
        """
        if reason is FinishReason.LENGTH:
            return b'"stop_reason":"max_tokens","stop_sequence":null'
        matched = self.find_stop()
        if last_call is not None and (matched is None or read_input(last_call) is not None):
            return b'"stop_reason":"tool_use","stop_sequence":null'
        if matched is not None:
            return b'"stop_reason":"stop_sequence","stop_sequence":' + orjson.dumps(matched)
        return b'"stop_reason":"end_turn","stop_sequence":null'


def read_input(arguments: str) -> dict[str, object] | None:
    """Returns the object that a call's arguments are; None if they are none."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


class MessageStream:
    """Server-sent events as Anthropic sends them: each block begins, grows and ends before the next one."""

    content_type = b"text/event-stream; charset=utf-8"

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._index = -1  # of the block that was begun last
        self._kind = b""
        self._before = b""
        self._last_call: list[str] | None = None

    def open(self) -> bytes:
        counts = b'"usage":{"input_tokens":%d,"output_tokens":0}' % self._shown.group.prompt_tokens
        message = self._shown.encode_head() + b',"content":[],"stop_reason":null,"stop_sequence":null,' + counts
        return b'event: message_start\ndata: {"type":"message_start","message":' + message + b"}}\n\n" + PING

    def text(self, text: str) -> bytes:
        if self._kind is TEXT and self._shown.parser is None:
            return self._before + orjson.dumps(text) + AFTER if text else b""
        return b"".join([self._show(part) for part in feed(self._shown.parser, text)])

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        rest = b"".join([self._show(part) for part in flush(self._shown.parser)])
        if self._index < 0:  # clients take the first block for granted
            rest = self._begin(TEXT, b'{"type":"text","text":""}')
        self._shown.group.close(completion_tokens)
        ended = self._shown.encode_reason(reason, None if self._last_call is None else "".join(self._last_call))
        counts = (ended, self._shown.group.prompt_tokens, completion_tokens)
        last = b'{"type":"message_delta","delta":{%b},"usage":{"input_tokens":%d,"output_tokens":%d}}' % counts
        return rest + self._end() + b"event: message_delta\ndata: " + last + b"\n\n" + STOP

    def fail(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _show(self, part: Part) -> bytes:
        match part:
            case Content(text):
                opening = b"" if self._kind is TEXT else self._begin(TEXT, b'{"type":"text","text":""}')
                return opening + self._before + orjson.dumps(text) + AFTER
            case Reasoning(text):
                block = b'{"type":"thinking","thinking":"","signature":""}'
                opening = b"" if self._kind is THINKING else self._begin(THINKING, block)
                return opening + self._before + orjson.dumps(text) + AFTER
            case CallStart(_, call_id, name):
                self._last_call = []
                return self._begin(CALL, orjson.dumps({"type": "tool_use", "id": call_id, "name": name, "input": {}}))
            case CallArguments(_, text):
                assert self._last_call is not None
                self._last_call.append(text)
                return self._before + orjson.dumps(text) + AFTER

    def _begin(self, kind: bytes, block: bytes) -> bytes:
        """Ends the block before, if there is one, and begins another."""
        ended = self._end()
        self._index += 1
        self._kind = kind
        self._before = DELTA % (self._index, kind)
        return ended + BEGIN % (self._index, block)

    def _end(self) -> bytes:
        if self._index < 0:
            return b""
        end = END % self._index
        if self._kind is not THINKING:
            return end
        return DELTA % (self._index, SIGNATURE) + orjson.dumps(self._shown.request_id) + AFTER + end


class MessageFold:
    """A stream folded into one message: nothing is sent before the end."""

    content_type = b"application/json"

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._blocks: list[dict[str, object]] = []
        self._kind = b""
        self._pieces: list[str] = []  # of the block that was begun last
        self._last_call: list[str] | None = None

    def open(self) -> bytes:
        return b""

    def text(self, text: str) -> bytes:
        for part in feed(self._shown.parser, text):
            self._take(part)
        return b""

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes:
        shown = self._shown
        for part in flush(shown.parser):
            self._take(part)
        self._end()
        shown.group.close(completion_tokens)
        values = (
            shown.encode_head(),
            orjson.dumps(self._blocks or [{"type": "text", "text": ""}]),  # clients take the first block for granted
            shown.encode_reason(reason, None if self._last_call is None else "".join(self._last_call)),
            shown.group.prompt_tokens,
            completion_tokens,
        )
        return b'%b,"content":%b,%b,"usage":{"input_tokens":%d,"output_tokens":%d}}' % values

    def fail(self, error: GatewayError) -> bytes:
        return error_event(error)

    def _take(self, part: Part) -> None:
        match part:
            case Content(text):
                if self._kind is not TEXT:
                    self._begin(TEXT, {"type": "text"})
                self._pieces.append(text)
            case Reasoning(text):
                if self._kind is not THINKING:
                    self._begin(THINKING, {"type": "thinking", "signature": self._shown.request_id})
                self._pieces.append(text)
            case CallStart(_, call_id, name):
                self._begin(CALL, {"type": "tool_use", "id": call_id, "name": name})
                self._last_call = self._pieces
            case CallArguments(_, text):
                self._pieces.append(text)

    def _begin(self, kind: bytes, block: dict[str, object]) -> None:
        self._end()
        self._kind = kind
        self._pieces = []
        self._blocks.append(block)

    def _end(self) -> None:
        """Completes the block that was begun last.

        A call whose arguments are no JSON object, as one cut short, has an empty input: there is no place for others.
        """
        text = "".join(self._pieces)
        if self._kind is CALL:
            self._blocks[-1]["input"] = read_input(text) or {}
        elif self._kind:
            self._blocks[-1]["text" if self._kind is TEXT else "thinking"] = text
