"""uvicorn's HTTP protocol, which hands generation requests to the gateway without a detour by ASGI, and answers probes.

uvicorn parses, keeps connections alive, pipelines and shuts down as for any request; only what it would make of one,
a scope, a task and messages in both directions, is left out for those that a Handler takes, and of a usual request
also its parser. Bytes in, Turns out.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_path_with_query_string

from gateway.api.errors import BodyTooLarge
from gateway.api.request import Request, read_usual, read_usual_get
from gateway.api.turn import Turn

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = (b"content-type: application/json",)


class Handler(Protocol):
    """Whom requests go to. `takes`: paths whose POSTs it wants. `stall_s`: how long a client may take nothing.

    `says`: paths whose GETs are always answered with this JSON, at once, however long a task would wait for its turn.
    """

    takes: frozenset[bytes]
    says: Mapping[bytes, bytes]
    max_body_bytes: int
    stall_s: float

    def take(self, turn: Turn) -> None:
        """Answer it; called once its body is there, or `error` says why it will not be. Does not raise."""
        ...


class Downstream(HttpToolsProtocol):
    """A client's connection; for `uvicorn.Config(http=Downstream)` with an app that has a `handler`."""

    turn: Turn | None = None  # hears what becomes of the client
    stall_s = 0.0
    _handler: Handler | None = None
    _is_parsing = False  # uvicorn's parser is inside a message
    _missing = 0  # bytes of the body of a usual request
    _is_heard = False  # since the last answer was complete
    _idle_since = 0.0  # on the loop's clock

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._handler = getattr(self.app, "handler", None)
        if self._handler is not None:
            self.stall_s = self._handler.stall_s

    # A usual request, without the parser.

    def data_received(self, data: bytes) -> None:
        self._is_heard = True
        if self._missing:
            self._read_body(data)
        elif self._is_parsing or not self._begin_usual(data):
            super().data_received(data)

    def _begin_usual(self, data: bytes) -> bool:
        """Whether `data` is the start of a request of its own, and a usual one."""
        before: RequestResponseCycle | None = self.cycle
        handler = self._handler
        if handler is None or (before is not None and not before.response_complete):
            return False
        if (usual := read_usual(data)) is None:
            return self._say(data, handler)
        request, length, start = usual
        missing = start + length - len(data)
        # More than one message in a read is the pipeline's affair.
        if missing < 0 or request.target not in handler.takes or length > handler.max_body_bytes:
            return False
        turn = Turn(self, request, is_http11=True, keep_alive=True)
        self.cycle = turn  # type: ignore[assignment]  # it has all that uvicorn asks of one
        turn.body = data[start:]
        if missing:
            self._missing = missing
        else:
            turn.more_body = False
            handler.take(turn)
        return True

    def _say(self, data: bytes, handler: Handler) -> bool:
        """Whether `data` is one whole usual request for what is always the same, which is answered then."""
        if (usual := read_usual_get(data)) is None:
            return False
        request, keep_alive = usual
        if (body := handler.says.get(request.target)) is None:
            return False
        turn = Turn(self, request, is_http11=True, keep_alive=keep_alive)
        turn.method = "GET"
        turn.more_body = False
        self.cycle = turn  # type: ignore[assignment]  # it has all that uvicorn asks of one
        turn.attach(None)
        turn.begin(HTTPStatus.OK, JSON, len(body))
        turn.end(body)
        return True

    def _read_body(self, data: bytes) -> None:
        turn: object = self.cycle
        assert isinstance(turn, Turn)  # or nothing would be missing
        body, rest = data[: self._missing], data[self._missing :]
        turn.body = bytearray(turn.body) if isinstance(turn.body, bytes) else turn.body
        turn.body += body
        self._missing -= len(body)
        if not self._missing:
            turn.more_body = False
            self._hand_over(turn)
        if rest:
            super().data_received(rest)

    # From the parser.

    def on_message_begin(self) -> None:
        self._is_parsing = True
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        handler = self._handler
        path, _, query = self.url.partition(b"?")
        if handler is None or path not in handler.takes or self.parser.get_method() != b"POST":
            self._leave_to_uvicorn()
            return
        is_http11 = self.parser.get_http_version() == "1.1"
        turn = Turn(
            self,
            Request(path.decode("ascii"), self.url if query else path, tuple(self.headers)),
            is_http11=is_http11,
            # Of a request that offers an upgrade the parser skips the body: it would be read as a request of its own.
            keep_alive=is_http11 and self.parser.should_keep_alive() and not self.parser.should_upgrade(),
        )
        turn.body = bytearray()
        self.headers = []  # what the parser adds from here on are trailers, which are no headers
        before: RequestResponseCycle | None = self.cycle
        self.cycle = turn  # type: ignore[assignment]  # it has all that uvicorn asks of one
        turn.is_queued = before is not None and not before.response_complete
        if turn.is_queued:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        if turn.request.length > handler.max_body_bytes:
            self._refuse_body(turn, handler)
        elif self.expect_100_continue and not turn.is_queued:
            self.transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        turn: object = self.cycle
        if not isinstance(turn, Turn):
            super().on_body(body)
        elif turn.error is None and (handler := self._handler) is not None:
            turn.body += body
            if len(turn.body) > handler.max_body_bytes:
                self._refuse_body(turn, handler)

    def on_message_complete(self) -> None:
        self._is_parsing = False
        turn: object = self.cycle
        if not isinstance(turn, Turn):
            super().on_message_complete()
        elif turn.more_body:
            turn.more_body = False
            self._hand_over(turn)

    # From the transport.

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (turn := self.turn) is not None:
            self.turn = None
            turn.lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.turn is not None:
            self.turn.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.turn is not None:
            self.turn.resumed()
        if self.flow.read_paused and not self.pipeline:  # until the client had taken what was said
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """As uvicorn's, but that a timer is not made anew for each answer: one that is early looks again later."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.write_paused:  # or what is said to a client that asks on, and reads nothing, would pile up
            self.flow.pause_reading()
        elif self.flow.read_paused:
            self.flow.resume_reading()
        self._is_heard = False
        self._idle_since = self.loop.time()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.timeout_keep_alive_task is None:
            self._watch_for(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._is_heard:
            return  # the end of what is under way will watch again
        if left > 0:
            self._watch_for(left)
        # Closing waits until the client has taken what is buffered, and one that has stood still since never will.
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _watch_for(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    # For turns.

    @property
    def default_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self.server_state.default_headers

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def log(self, turn: Turn, status: int) -> None:
        """As uvicorn's access log, which only needs these of a scope."""
        path, _, query = turn.request.target.partition(b"?")
        scope: Any = {"path": path.decode("ascii"), "query_string": query}
        client = "{}:{}".format(*self.client) if self.client else ""
        version = "1.1" if turn.takes_chunks else "1.0"
        line = (client, turn.method, get_path_with_query_string(scope), version, status)
        self.access_logger.info('%s - "%s %s HTTP/%s" %d', *line)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # Any: uvicorn's own
        """uvicorn's word for the next request in the pipeline."""
        if isinstance(cycle, Turn):
            cycle.is_queued = False
            if self.pipeline:  # one read's worth of requests is enough to hold
                self.flow.pause_reading()
            if not cycle.more_body:  # not at once: thousands that are refused would be so many calls deep
                self.loop.call_soon(self._hand_over, cycle)
        else:
            super()._start_asgi_task(cycle, app)

    def _leave_to_uvicorn(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _refuse_body(self, turn: Turn, handler: Handler) -> None:
        turn.error = BodyTooLarge(f"The body is larger than {handler.max_body_bytes} bytes.")
        turn.body = b""
        turn.more_body = False
        self._hand_over(turn)

    def _hand_over(self, turn: Turn) -> None:
        if not turn.is_queued and (handler := self._handler) is not None:
            handler.take(turn)
