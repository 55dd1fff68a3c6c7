"""The relay lane: a client's own request to an engine that speaks OpenAI's API, and its answer back as it came.

From the upstream connection's read to the client's transport everything is plain calls on the bytes of that read,
chunk framing included; on the way the first event is looked at, and reads, events and usage are noted. Implements
core.RelayBackend.
"""

import asyncio
import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus

import orjson

from gateway.backends.calls import SWEEPS_PER_TIMEOUT, LiveCalls
from gateway.backends.http1 import END_OF_EVENT, SHORT, Exchange, Splice, Take
from gateway.backends.http1_client import Client
from gateway.backends.http1_framing import Chunked, Head
from gateway.backends.sse import EventStream
from gateway.core import Need, RelayCall, RelayRequest, RelaySink
from gateway.errors import BackendError, BackendFull, BackendLost, BackendUnavailable, GatewayError
from gateway.header import KEPT_HEADS, end_to_end
from gateway.settings import RelaySettings, VLLMSettings

READY_TIMEOUT_S = 5.0
EVENT_STREAM = b"text/event-stream"
END_BY_CRLF = b"\r\n\r\n"
NEWLINE = END_OF_EVENT[0]
MUCH_KEPT = 4096
DONE = re.compile(rb"\[DONE\]\s*(?:0\s*)?\Z")  # with the last chunk, if the body is in chunks
MAX_FIRST_EVENT = 64 * 1024  # beyond this it goes on unread

NOT_SENT_BACK = frozenset({b"date", b"server", b"x-request-id"})  # the gateway says these for itself

MAX_DIGITS = 10  # of a count of tokens; what has more, or a sign, is none
# Its priority, rank and session: entrypoints/generate/base/serving.py of vLLM 0.32.
VLLMS_OWN = (b"x-vllm-", b"x-data-parallel-rank:", b"x-session-id:")

COUNT = re.compile(rb"\s*:\s*(\d{1,10})(?![\d.eE])")
FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
FULL = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
AWAY = {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}  # said by a proxy in front of an engine that is not there
ELSEWHERE = FULL | AWAY  # before anything of the answer exists, another engine may do better


class Relayed(Splice):
    """One answer on its way from an engine to a client: a connection's Receiver and Splice, the lane's RelayCall.

    `write`: to the client, once the answer has begun. Of the last reads, in `kept`, short ones are joined: an answer's
    usage and finish_reason stand before its [DONE].
    """

    def __init__(self, pool: "RelayServer", request: RelayRequest, sink: RelaySink) -> None:
        super().__init__()
        self.status = 0
        self.first: float | None = None
        self.last = 0.0
        self._head: Head | None = None
        self._length: int | None = None  # of the body
        self._held = b""  # of the body, before it has begun
        self._has_begun = False
        self._is_stream = False
        self._is_framed = False
        self._is_over = False
        self._is_paused = False
        self._seen = b""  # the last read at the last sweep
        self._silent_sweeps = 0
        self._pool = pool
        self._sink = sink
        pool.calls.add(self)
        self._exchange: Exchange | None = pool.client.send(pool.render(request), self)

    # core.RelayCall

    def cancel(self) -> None:
        if not self._is_over:
            self._leave()

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
        end, start = self._find_last(b'"usage"')
        if start < 0:
            return 0, 0
        try:  # as vLLM and OpenAI write it: by hand it takes half as long as by a pattern
            prompt = end.index(b'"prompt_tokens":', start) + len(b'"prompt_tokens":')
            completion = end.index(b'"completion_tokens":', prompt) + len(b'"completion_tokens":')
            return _count(end[prompt : end.index(b",", prompt)]), _count(end[completion : end.index(b",", completion)])
        except ValueError:  # in another order, spaced out, or with no field after it
            return _read_count(end, b'"prompt_tokens"', start), _read_count(end, b'"completion_tokens"', start)

    @property
    def finish_reason(self) -> str | None:
        # Of the last chunk that has one; the usage chunk after it has none.
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

    # http1.Receiver

    def whole(self, head: Head, data: bytes) -> None:
        status, sink = head.status, self._sink
        if status in ELSEWHERE or head.content_type.startswith(EVENT_STREAM):
            take = self.head(head, len(data))
            if not self._is_over:
                take(data)
                self.done()
            return
        self.status, self.kept = status, data
        self.first = self.last = time.monotonic()
        sink.begin(status, _lines_back(head.fields), len(data), is_framed=False)
        self._close()
        sink.finish(data)

    def head(self, head: Head, length: int | None) -> Take:
        self._head, self._length = head, length
        self.status = status = head.status
        if head.is_chunked and self._sink.takes_chunks:
            assert self._exchange is not None  # it is the one that calls
            self._is_framed = self._exchange.takes_framing = True
        if status == 200:
            self._is_stream = head.content_type.startswith(EVENT_STREAM)
        elif status in ELSEWHERE:
            self.fail(self._pool.refusal(status))
        return self._body

    def _body(self, data: bytes) -> None:
        if not self._has_begun:
            self._look(data)
            return
        self.events += data.count(END_OF_EVENT)
        if data[0] == NEWLINE == self.kept[-1]:
            self.events += 1  # its end was cut in two
        if len(data) < SHORT and len(self.kept) < MUCH_KEPT:
            self.kept += data
        else:
            self.kept_before, self.kept = self.kept, data
        try:
            self.write(data)
        except RuntimeError:
            self.refused()

    def refused(self) -> None:
        self._sink.lost()

    def done(self) -> None:
        if self._is_over:
            return
        if not self._has_begun:
            self._begin()
        if not self._is_stream:
            self.events = 0
            self.last = self.first or 0.0  # however many reads it took, it is one piece
        else:
            self.last = time.monotonic()
            if DONE.search(self.kept[-SHORT:]):
                self.events -= 1
        self._close()
        self._sink.finish()

    def lost(self, error: GatewayError) -> None:
        if self._is_over:
            return
        if not self._has_begun:
            self.fail(error)
            return
        self._close()
        self._sink.fail(BackendLost(error.message), may_append=self._is_between_events())

    # calls.LiveCalls

    def sweep(self) -> None:
        # A read leaves an object that was not there before, so that no read has to reset a count.
        is_silent = self.kept is self._seen and not self._is_paused
        self._seen = self.kept
        self._silent_sweeps = self._silent_sweeps + 1 if is_silent else 0
        if self._silent_sweeps > SWEEPS_PER_TIMEOUT:
            self.fail(self._pool.calls.timeout_error())

    def fail(self, error: GatewayError) -> None:
        if self._is_over:
            return
        may_append = self._has_begun and self._is_between_events()
        if self._has_begun and isinstance(error, BackendUnavailable):
            error = BackendLost(error.message)  # unavailable promises that nothing was answered
        self._leave()
        self._sink.fail(error, may_append=may_append)

    def fail_unless_begun(self, error: GatewayError) -> None:
        if not self._has_begun:
            self.fail(error)

    # Between the head and the first byte that goes on.

    def _look(self, data: bytes) -> None:
        """Hold a stream back until its first event is complete: an engine may report an error there, after a 200."""
        if not self._is_stream:
            self.kept = data
            self._begin()
            self._sink.write(data)
            return
        self._held += data
        payload = self._payload()
        event, is_whole, _ = payload.partition(END_OF_EVENT)
        if not is_whole and len(payload) < MAX_FIRST_EVENT and END_BY_CRLF not in payload:
            return
        error = _read_error(event)
        if error is None:
            self._begin()
        else:
            self._refuse(*error)

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
        sink.begin(self.status, _lines_back(head.fields), self._length, is_framed=self._is_framed)
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
        if END_BY_CRLF in payload:  # some engines' lines; what it costs to count them the others do not pay
            events = _EventsByCRLF(self, self.write, is_framed=self._is_framed)
            events.count(held)
            self.write = events.write
        if self._exchange is not None and self._is_framed:
            self._exchange.splice = self

    def _refuse(self, status: int, body: bytes) -> None:
        """What an event reported, as the status that it names."""
        if status in ELSEWHERE or status >= 500:
            self.fail(self._pool.refusal(status))
            return
        self._leave()
        self.status = status
        self._sink.begin(status, [b"content-type: application/json"], len(body), is_framed=False)
        self._sink.write(body)
        self._sink.finish()

    def _is_between_events(self) -> bool:
        if not self._is_stream or self._length is not None:
            return False
        chunk_end = b"\r\n" if self._is_framed else b""
        return self.kept.endswith((END_OF_EVENT + chunk_end, END_BY_CRLF + chunk_end))

    # The end.

    def _close(self) -> None:
        self._is_over = True
        self._exchange = None
        self._pool.calls.discard(self)

    def _leave(self) -> None:
        exchange = self._exchange
        self._close()
        if exchange is not None:
            exchange.abort()  # engines abort a request whose client disconnects


class _EventsByCRLF:
    """Counts events whose lines end in CRLF on their way; as with the others, by the empty lines that end them."""

    def __init__(self, relayed: Relayed, write: Callable[[bytes], None], *, is_framed: bool) -> None:
        self._relayed = relayed
        self._write = write
        self._chunks = Chunked() if is_framed else None
        self._rest = b""  # what may be the start of an event's end

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
        self.capabilities = frozenset({Need.RELAY})
        self.calls = LiveCalls(settings.name, settings.idle_timeout_s)
        self.client = Client(settings.url, peer=settings.name, connect_timeout_s=settings.connect_timeout_s)
        self._own_head = b" HTTP/1.1\r\nhost: " + self.client.host
        # Where not all of a body goes on, neither does what vLLM takes from a head in a field's place.
        self._kept_back = () if settings.allow is None else VLLMS_OWN
        self._health = self.client.render("GET", "/health")
        if isinstance(settings, RelaySettings):
            self._health = self.client.render("GET", settings.health_path)
            if settings.api_key is not None:
                self._own_head += b"\r\nauthorization: Bearer " + settings.api_key.encode()

    def __repr__(self) -> str:
        return f"<RelayServer {self.name} {self.calls!r} {self.client!r}>"

    def relay(self, request: RelayRequest, sink: RelaySink) -> RelayCall:
        return Relayed(self, request, sink)

    async def is_ready(self) -> bool:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                status, _ = await self.client.fetch(self._health)
        except (GatewayError, TimeoutError):
            status = 0
        if status != HTTPStatus.OK:
            self.calls.fail_waiting()
        return status == HTTPStatus.OK

    async def aclose(self) -> None:
        self.calls.close(BackendUnavailable(f"{self.name} is being closed"))
        await self.client.aclose()

    def render(self, request: RelayRequest) -> bytes:
        """The client's request with a head of ours."""
        own = f"x-request-id: {request.request_id}\r\ncontent-length: {len(request.body)}\r\n\r\n"
        start = b"POST " + request.path + self._own_head
        lines = request.lines
        if self._kept_back:
            lines = tuple([line for line in lines if not line.startswith(self._kept_back)])
        return b"\r\n".join((start, *lines, own.encode())) + request.body

    def refusal(self, status: int) -> GatewayError:
        """What a status says of the engine rather than of the request."""
        if status in FULL:
            return BackendFull(f"{self.name} is full or not ready")
        if status in AWAY:
            return BackendUnavailable(f"{self.name} is not there")
        return BackendError(f"{self.name} failed")


# Heads that are found again have the very same fields, and one look at those takes a third of the time.
_lines_back = lru_cache(maxsize=KEPT_HEADS)(partial(end_to_end, dropped=NOT_SENT_BACK))


def _count(digits: bytes) -> int:
    """Raises ValueError for what is no count of tokens."""
    if len(digits) > MAX_DIGITS or not digits.isdigit():
        raise ValueError("no count")
    return int(digits)


def _read_count(data: bytes, key: bytes, start: int) -> int:
    place = data.find(key, start)
    found = COUNT.match(data, place + len(key)) if place > 0 else None
    return int(found[1]) if found else 0


def _read_error(event: bytes) -> tuple[int, bytes] | None:
    """Status and body of an error that stands where a first event is expected; None for any other event."""
    data = EventStream().feed(event.strip() + END_OF_EVENT)
    if not data or b'"error"' not in data[0]:
        return None
    try:
        chunk = orjson.loads(data[0])
        error = chunk if chunk.get("object") == "error" else chunk.get("error")
        code = int(error.get("code") or 500)
    except (ValueError, TypeError, AttributeError):
        return None  # it only looks like one
    return (code if 400 <= code < 600 else 500), orjson.dumps({"error": error})
