"""The relay lane: a client's own request to an engine that speaks OpenAI's API, and its answer back as it came.

From the read of the engine's connection to the client's transport there are only plain calls on the bytes of that read,
chunk framing included. On the way the first event is checked for an error; events are counted, and the last reads kept
for the usage. Implements core.RelayBackend.
"""

import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus

import orjson

from gateway.backends.calls import SWEEPS_PER_TIMEOUT, LiveCalls
from gateway.backends.http1_client import Client
from gateway.backends.http1_connection import SHORT_READ_BYTES, Deliver, Exchange, Splice
from gateway.backends.http1_framing import Chunked, Head
from gateway.backends.sse import END_OF_EVENT, EventStream
from gateway.core import NO_CACHE_USE, Need, RelayCall, RelayRequest, RelaySink
from gateway.errors import BackendError, BackendFull, BackendLost, BackendUnavailable, GatewayError
from gateway.header import KEPT_HEADS, end_to_end
from gateway.settings import RelaySettings, VLLMSettings

EVENT_STREAM, JSON = b"text/event-stream", b"application/json"
END_BY_CRLF = b"\r\n\r\n"
NEWLINE = END_OF_EVENT[0]
MAX_JOINED_BYTES = 4096
DONE = re.compile(rb"\[DONE\]\s*(?:0\s*)?\Z")  # with the last chunk, if the body is in chunks
MAX_FIRST_EVENT_BYTES = 64 * 1024  # a longer first event is passed on unchecked

OWN_FIELDS = frozenset({b"date", b"server", b"x-request-id"})  # the gateway sends its own

ZERO, NINE = b"09"
MAX_COUNT_DIGITS = 10  # of a count of tokens; a number with more digits or a sign is not accepted
# vLLM's priority, rank and session: entrypoints/generate/base/serving.py of vLLM 0.32.
VLLM_FIELDS = (b"x-vllm-", b"x-data-parallel-rank:", b"x-session-id:")

COUNT = re.compile(rb"\s*:\s*(\d{1,%d})(?![\d.eE])" % MAX_COUNT_DIGITS)
FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
FULL = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
UNREACHABLE = {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}  # from a proxy whose engine is down
RETRIED = FULL | UNREACHABLE  # nothing of an answer exists yet, so another engine is tried


class RelayedAnswer(Splice):
    """One answer on its way from an engine to a client: a connection's Receiver and Splice, the lane's RelayCall.

    `write`: writes to the client, once the answer has begun. `kept`, `kept_before`: the last two reads, with short ones
    joined, since an answer's usage and finish_reason precede its [DONE].
    """

    def __init__(self, pool: "RelayServer", request: RelayRequest, sink: RelaySink) -> None:
        super().__init__()
        self.status = 0
        self.first: float | None = None
        self.last = 0.0
        self.size = 0
        self._head: Head | None = None
        self._length: int | None = None  # of the body
        self._held = b""  # the body's bytes that are held back until the answer begins
        self._has_begun = False
        self._is_stream = self._is_json = False
        self._is_framed = False
        self._is_over = False
        self._usage: tuple[int, int] | None = None
        self._usage_of = b""  # the `kept` that it was read of
        self._is_paused = False
        self._last_seen = b""  # the `kept` of the last sweep
        self._silent_sweeps = 0
        self._pool = pool
        self._sink = sink
        pool.calls.add(self)
        self._exchange: Exchange | None = pool.client.send(pool.render(request), self)

    # core.RelayCall

    def cancel(self) -> None:
        if not self._is_over:
            self._abort()

    def pause(self) -> None:
        self._is_paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        self._is_paused = False
        if self._exchange is not None:
            self._exchange.resume()

    @property
    def usage(self) -> tuple[int, int]:
        if self._usage is None or self._usage_of is not self.kept:
            self._usage, self._usage_of = self._read_usage(), self.kept
        return self._usage

    def _read_usage(self) -> tuple[int, int]:
        end, start = self._find_last(b'"usage"')
        if start < 0:
            return 0, 0
        try:  # the form of vLLM and OpenAI: without a pattern this takes half as long
            prompt = end.index(b'"prompt_tokens":', start) + len(b'"prompt_tokens":')
            completion = end.index(b'"completion_tokens":', prompt) + len(b'"completion_tokens":')
            return _parse_count(end, prompt), _parse_count(end, completion)
        except (ValueError, IndexError):  # in another order, with spaces, or cut off
            usage = _read_count(end, b'"prompt_tokens"', start), _read_count(end, b'"completion_tokens"', start)
            if any(usage):
                return usage
            # Of Responses and Messages.
            return _read_count(end, b'"input_tokens"', start), _read_count(end, b'"output_tokens"', start)

    @property
    def finish_reason(self) -> str | None:
        # The last chunk that has a finish_reason counts; the usage chunk after it has none.
        end, start = self._find_last(b'"finish_reason"')
        if start < 0:
            return None
        if end.startswith(b'"finish_reason":"stop"', start):
            return "stop"
        found = FINISH_REASON.match(end, start)
        return None if found is None else found[1].decode()

    def _find_last(self, key: bytes) -> tuple[bytes, int]:
        if (start := self.kept.rfind(key)) >= 0:
            return self.kept, start
        end = self.kept_before + self.kept
        return end, end.rfind(key)

    # http1_connection.Receiver

    def receive_answer(self, head: Head, data: bytes) -> None:
        status, sink = head.status, self._sink
        if status in RETRIED or head.content_type.startswith(EVENT_STREAM):
            deliver = self.receive_head(head, len(data))
            if not self._is_over:
                deliver(data)
                self.exchange_finished()
            return
        self.status, self.kept = status, data
        self.size = len(data) if head.content_type.startswith(JSON) else 0
        self.first = self.last = time.monotonic()
        sink.begin(status, _response_lines(head.fields), len(data), is_framed=False)
        self._detach()
        sink.finish(data)

    def receive_head(self, head: Head, length: int | None) -> Deliver:
        self._head, self._length, self._is_json = head, length, head.content_type.startswith(JSON)
        self.status = status = head.status
        if head.is_chunked and self._sink.takes_chunks:
            assert self._exchange is not None  # it makes this call
            self._is_framed = self._exchange.takes_framing = True
        if status == 200:
            self._is_stream = head.content_type.startswith(EVENT_STREAM)
        elif status in RETRIED:
            self.fail(self._pool.error_of_status(status))
        return self._receive_body

    def _receive_body(self, data: bytes) -> None:
        if not self._has_begun:
            self._hold_first_event(data)
            return
        self.events += data.count(END_OF_EVENT)
        self.size += len(data) * self._is_json
        if data[0] == NEWLINE == self.kept[-1]:
            self.events += 1  # the event's end was cut in two
        if len(data) < SHORT_READ_BYTES and len(self.kept) < MAX_JOINED_BYTES:
            self.kept += data
        else:
            self.kept_before, self.kept = self.kept, data
        try:
            self.write(data)
        except RuntimeError:
            self.write_failed()

    def write_failed(self) -> None:
        self._sink.write_failed()

    def exchange_finished(self) -> None:
        if self._is_over:
            return
        if not self._has_begun:
            self._begin()
        if not self._is_stream:
            self.events = 0
            self.last = self.first or 0.0  # one piece, however many reads it took
        else:
            self.last = time.monotonic()
            if self.events and DONE.search(self.kept[-SHORT_READ_BYTES:]):
                self.events -= 1
        self._detach()
        self._sink.finish()

    def exchange_failed(self, error: GatewayError) -> None:
        if self._is_over:
            return
        if not self._has_begun:
            self.fail(error)
            return
        self._detach()
        self._sink.fail(BackendLost(error.message), may_append=self._is_between_events())

    # calls.LiveCalls

    @property
    def progress(self) -> int:
        return self.events or int(self.first is not None)

    def sweep(self) -> None:
        # Every read leaves another object in `kept`, so no read has to reset a count.
        is_silent = self.kept is self._last_seen and not self._is_paused
        self._last_seen = self.kept
        self._silent_sweeps = self._silent_sweeps + 1 if is_silent else 0
        if self._silent_sweeps > SWEEPS_PER_TIMEOUT:
            self.fail(self._pool.calls.timeout_error())

    def fail(self, error: GatewayError) -> None:
        if self._is_over:
            return
        may_append = self._has_begun and self._is_between_events()
        if self._has_begun and isinstance(error, BackendUnavailable):
            error = BackendLost(error.message)  # BackendUnavailable would promise that nothing was answered
        self._abort()
        self._sink.fail(error, may_append=may_append)

    def fail_unless_begun(self, error: GatewayError) -> None:
        if not self._has_begun:
            self.fail(error)

    # Between the head and the first byte that is passed on.

    def _hold_first_event(self, data: bytes) -> None:
        """Hold a stream back until its first event is complete: with status 200 too, that event may be an error."""
        if not self._is_stream:
            self.kept, self.size = data, len(data) * self._is_json
            self._begin()
            self._sink.write(data)
            return
        self._held += data
        payload = self._payload()
        event, is_whole, _ = payload.partition(END_OF_EVENT)
        if not is_whole and len(payload) < MAX_FIRST_EVENT_BYTES and END_BY_CRLF not in payload:
            return
        error = _read_error(event)
        if error is None:
            self._begin()
        else:
            self._report_error(*error)

    def _payload(self) -> bytes:
        if not self._is_framed:
            return self._held
        pieces: list[bytes] = []
        Chunked().feed(self._held, pieces)
        return b"".join(pieces)

    def _begin(self) -> None:
        head, sink = self._head, self._sink
        assert head is not None  # a body comes after its head
        self.first = time.monotonic()
        self._has_begun = True
        sink.begin(self.status, _response_lines(head.fields), self._length, is_framed=self._is_framed)
        if not self._is_stream:
            self.write = sink.splice() if self._is_framed else sink.write
            return
        payload = self._payload()
        held, self._held = self._held, b""
        if held:
            self.events = held.count(END_OF_EVENT)
            self.kept = held
            self._sink.write(held)
        self.write = self._sink.splice() if held and self._is_framed else self._sink.write
        if END_BY_CRLF in payload:  # as some engines write; counting these costs more, so others do without
            events = _CRLFEventCounter(self, self.write, is_framed=self._is_framed)
            events.count(held)
            self.write = events.write
        if self._exchange is not None and self._is_framed:
            self._exchange.splice = self

    def _report_error(self, status: int, body: bytes) -> None:
        """Answer with the status of the error that the first event reported."""
        self.status = status
        if status in RETRIED or status >= 500:
            self.fail(self._pool.error_of_status(status))
            return
        self._abort()
        self._sink.begin(status, [b"content-type: application/json"], len(body), is_framed=False)
        self._sink.write(body)
        self._sink.finish()

    def _is_between_events(self) -> bool:
        if not self._is_stream or self._length is not None:
            return False
        chunk_end = b"\r\n" if self._is_framed else b""
        return self.kept.endswith((END_OF_EVENT + chunk_end, END_BY_CRLF + chunk_end))

    # Ends.

    def _detach(self) -> None:
        self._is_over = True
        self._exchange = None
        self._pool.calls.discard(self)

    def _abort(self) -> None:
        exchange = self._exchange
        self._detach()
        if exchange is not None:
            exchange.abort()  # engines abort a request whose client disconnects


class _CRLFEventCounter:
    """Counts events whose lines end in CRLF while it passes them on."""

    def __init__(self, relayed: RelayedAnswer, write: Callable[[bytes], None], *, is_framed: bool) -> None:
        self._relayed = relayed
        self._write = write
        self._chunks = Chunked() if is_framed else None
        self._rest = b""  # possibly the start of an event's end

    def write(self, data: bytes) -> None:
        self.count(data)
        self._write(data)

    def count(self, data: bytes) -> None:
        pieces = [self._rest]
        if self._chunks is None:
            pieces.append(data)
        else:
            self._chunks.feed(data, pieces)
        payload = b"".join(pieces)
        self._relayed.events += payload.count(END_BY_CRLF)
        self._rest = payload.rpartition(END_BY_CRLF)[2][-3:]


class RelayServer:
    """One server that speaks OpenAI's API."""

    def __init__(self, settings: RelaySettings | VLLMSettings) -> None:
        self.name = settings.name
        self.cache_use = NO_CACHE_USE
        self.capabilities = frozenset({Need.RELAY})
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        timeout_s = settings.connect_timeout_s
        self.client = Client(settings.url, peer=settings.name, connect_timeout_s=timeout_s, api_key=settings.api_key)
        self._own_head = b" HTTP/1.1\r\n" + self.client.own_lines.encode()
        # If the settings restrict the body's fields, header fields that vLLM reads in their place are dropped too.
        self._dropped_fields = () if settings.allow is None else VLLM_FIELDS
        self._health = self.client.render("GET", "/health")
        if isinstance(settings, RelaySettings):
            self._health = self.client.render("GET", settings.health_path)

    def __repr__(self) -> str:
        return f"<RelayServer {self.name} {self.calls!r} {self.client!r}>"

    def relay(self, request: RelayRequest, sink: RelaySink) -> RelayCall:
        return RelayedAnswer(self, request, sink)

    async def is_ready(self) -> bool:
        return await self.calls.ask_ready(self._is_healthy(), self.client.renew)

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.client.aclose()

    def render(self, request: RelayRequest) -> bytes:
        """Returns the client's request with the gateway's own head."""
        own = f"x-request-id: {request.request_id}\r\ncontent-length: {len(request.body)}\r\n\r\n"
        start = b"POST " + request.path + self._own_head
        lines = request.lines
        if self._dropped_fields:
            lines = tuple([line for line in lines if not line.startswith(self._dropped_fields)])
        return b"\r\n".join((start, *lines, own.encode())) + request.body

    async def _is_healthy(self) -> bool:
        status, _ = await self.client.fetch(self._health)
        return status == HTTPStatus.OK

    def error_of_status(self, status: int) -> GatewayError:
        """Returns the error for a status that is about the engine and not about the request."""
        if status in FULL:
            return BackendFull(f"{self.name} is full or not ready")
        if status in UNREACHABLE:
            return BackendUnavailable(f"{self.name} cannot be reached", was_lost=False)
        return BackendError(f"{self.name} failed")


# Heads from the cache have the same `fields` object, and looking it up takes a third of the time.
_response_lines = lru_cache(maxsize=KEPT_HEADS)(partial(end_to_end, dropped=OWN_FIELDS))


def _parse_count(data: bytes, start: int) -> int:
    """Parses the count of tokens at `start`. Raises ValueError if none is there, IndexError if the data ends in it."""
    # Digit by digit, which compiles to arithmetic; a slice, isdigit and int are calls, for every answer.
    count, end = 0, start
    while ZERO <= (byte := data[end]) <= NINE and end - start <= MAX_COUNT_DIGITS:
        count = 10 * count + byte - ZERO
        end += 1
    if not 0 < end - start <= MAX_COUNT_DIGITS or byte in b".eE":
        raise ValueError("no count")
    return count


def _read_count(data: bytes, key: bytes, start: int) -> int:
    place = data.find(key, start)
    found = COUNT.match(data, place + len(key)) if place > 0 else None
    return int(found[1]) if found else 0


def _read_error(event: bytes) -> tuple[int, bytes] | None:
    """Returns the status and body of an error in the place of a first event; None for any other event."""
    data = EventStream().feed(event.strip() + END_OF_EVENT)
    if not data or b'"error"' not in data[0]:
        return None
    try:
        chunk = orjson.loads(data[0])
        error = chunk if chunk.get("object") == "error" else chunk.get("error")
        code = int(error.get("code") or 500)
    except (ValueError, TypeError, AttributeError):
        return None  # it only resembles an error
    return (code if 400 <= code < 600 else 500), orjson.dumps({"error": error})
