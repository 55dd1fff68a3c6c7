"""A client's connection: uvicorn's HTTP protocol, which hands requests to a Handler without a detour by ASGI.

uvicorn parses, keeps connections alive, pipelines and shuts down as for any request. Only what uvicorn would make of a
request (a scope, a task, messages in both directions) is left out for the paths of the Handler, and for a usual request
also uvicorn's parser. In: bytes. Out: exchanges.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote, unquote_to_bytes

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.client_http.head import RequestHead, read_usual, read_usual_get
from gateway.client_http.intake import Intake
from gateway.client_http.transport import StallWatch, T, TransportExchange
from gateway.errors import (
    BodyTooLarge,
    GatewayError,
    HeadTooLarge,
    InvalidRequest,
    Overloaded,
    RequestTimeout,
    ShuttingDown,
)
from gateway.settings import LimitSettings

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = (b"content-type: application/json",)
SMALL_BODY_BYTES = 16 * 1024
LINGER_S = 2.0  # how long the rest of a refused request is read and thrown away
SURPLUS_S = 1.0  # how long a connection may take to send its request when there are too many
# What the parser is given at a time; the rest of a read waits for the next iteration of the loop. 256 kB hold
# thousands of requests, each of which takes 0.1 ms to refuse, and libuv reads 32 times before it polls another socket.
PORTION_BYTES = 8 * 1024
FIELD_BYTES = 4  # the colon, the space and the line end of a header field
UNREADABLE = RequestHead("-", b"-", ())  # stands in the access log for what has no request line


class Handler(Protocol):
    """Answers requests. `posts`: the paths whose POSTs it answers.

    `constant_answers`: the paths whose GETs are always answered with this JSON, at once, whatever tasks wait.
    """

    posts: frozenset[bytes]
    constant_answers: Mapping[bytes, bytes]
    intake: Intake

    def check_head(self, exchange: TransportExchange) -> GatewayError | None:
        """Returns why a request is refused by its head alone, before its body is read; notes its caller."""
        ...

    def handle(self, exchange: TransportExchange) -> None:
        """Answers `exchange`; called once its body is there, or `error` holds why it will not be. Does not raise."""
        ...


class ClientConnection(HttpToolsProtocol):
    """A client's connection, for `uvicorn.Config(http=ClientConnection)` with an app whose `handler` is a Handler.

    What a client sends is bounded in bytes and in time from the first byte on, and so is its silence before that.
    """

    exchange: TransportExchange | None = None  # called when something becomes of the client
    stall: StallWatch
    _handler: Handler
    _limits: LimitSettings
    _is_surplus = False  # beyond the limit on connections: a probe is answered, all else refused
    _is_parsing = False  # uvicorn's parser is inside a message
    _is_head_read = False  # of that message
    _has_progressed = False  # the parser found something in the last read
    _unread_bytes = 0  # of reads without progress: the parser holds part of a head, or of a trailer
    _missing = 0  # bytes of the body of a usual request
    _has_read = False  # since the last answer was complete
    _idle_since = 0.0  # on the loop's clock
    _due = 0.0  # on the loop's clock: by when the message has to arrive; 0: none is expected
    _timer: asyncio.TimerHandle | None = None
    _is_ending = False  # data read from here on is thrown away
    _backlog = b""  # read, and not yet given to the parser
    _is_going_on = False  # `_go_on` is scheduled

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._handler = self.app.handler
        intake = self._handler.intake
        self._limits = intake.limits
        self._is_surplus = intake.is_full(len(self.connections))
        if self._is_surplus:
            intake.keep_surplus(transport)
        self.stall = StallWatch(transport, self._limits.client_write_timeout_s)
        self._expect(SURPLUS_S if self._is_surplus else self._limits.head_timeout_s)

    # A usual request, without the parser

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._has_read = True
        if self._backlog:  # an app has asked for more of its body
            self._backlog += data
            self._go_on_soon()
        elif self._missing:
            self._read_body(data)
        elif self._is_parsing or not self._begin_usual(data):
            self._parse(data)

    def _begin_usual(self, data: bytes) -> bool:
        """Begins the exchange if `data` starts a new, usual request. Returns whether it did."""
        before: RequestResponseCycle | None = self.cycle
        handler = self._handler
        if before is not None and not before.response_complete:
            return False
        if (usual := read_usual(data)) is None:
            return self._answer_constant(data)
        head, length, start = usual
        missing = start + length - len(data)
        # More than one message in a read is the pipeline's affair.
        is_ours = missing >= 0 and head.target in handler.posts and not self._is_surplus
        if not is_ours or length > self._limits.max_body_bytes:
            return False
        exchange = TransportExchange(self, head, is_http11=True, keep_alive=True)
        self.cycle = exchange  # type: ignore[assignment]  # it has all that uvicorn asks of one
        self._due = 0.0  # its head has arrived
        exchange.error = handler.check_head(exchange)
        if missing:
            self._missing = missing
            self._expect(self._limits.body_timeout_s)
            self._keep_missing(exchange, data[start:])
        else:
            exchange.body = data[start:]
            exchange.more_body = False
            handler.handle(exchange)
        return True

    def _keep_missing(self, exchange: TransportExchange, body: bytes) -> None:
        """Keeps the first part of a body, or refuses its request."""
        if exchange.error is None:
            self._keep_body(exchange, body)
        elif self._missing > SMALL_BODY_BYTES:
            self._refuse_exchange(exchange, exchange.error)
        else:  # to throw its rest away costs less than another connection
            exchange.more_body = False
            self._hand_over(exchange)

    def _answer_constant(self, data: bytes) -> bool:
        """Answers `data` if it is one whole usual request whose answer is always the same. Returns whether it did."""
        if (usual := read_usual_get(data)) is None:
            return False
        head, keep_alive = usual
        if (body := self._handler.constant_answers.get(head.target)) is None:
            return False
        exchange = TransportExchange(self, head, is_http11=True, keep_alive=keep_alive and not self._is_surplus)
        exchange.method = "GET"
        exchange.more_body = False
        self._due = 0.0
        self.cycle = exchange  # type: ignore[assignment]  # it has all that uvicorn asks of one
        exchange.attach(None)
        exchange.begin(HTTPStatus.OK, JSON, len(body))
        exchange.finish(body)
        return True

    def _read_body(self, data: bytes) -> None:
        exchange: object = self.cycle
        assert isinstance(exchange, TransportExchange)  # or nothing would be missing
        body, rest = data[: self._missing], data[self._missing :]
        self._missing -= len(body)
        self._keep_body(exchange, body)
        if not self._missing:
            self._due = 0.0
            if exchange.more_body:
                exchange.more_body = False
                self._hand_over(exchange)
            else:  # it was refused at its head, and its end begins the silence after the answer
                self._has_read, self._idle_since = False, self.loop.time()
        if rest:
            self._parse(rest)

    # By the parser

    def _parse(self, data: bytes) -> None:
        if len(data) > PORTION_BYTES:
            data, self._backlog = data[:PORTION_BYTES], data[PORTION_BYTES:]
            self.flow.pause_reading()
            self._go_on_soon()
        self._unset_keepalive_if_required()
        if not self._is_parsing and not self._due:
            self._expect(self._limits.head_timeout_s)
        self._has_progressed = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # none that is offered is taken, and the request is answered as it is
        except httptools.HttpParserError:
            self._handler.intake.note_bad_request(self.client[0] if self.client else "")
            self._refuse(InvalidRequest("This is not an HTTP request."))
            return
        self._unread_bytes = 0 if self._has_progressed else self._unread_bytes + len(data)
        if self._unread_bytes > self._limits.max_head_bytes:
            self._refuse(self._head_too_large())

    def _go_on_soon(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_going_on = False
        if self._is_ending or self.transport.is_closing():
            self._backlog = b""
        elif not (self.pipeline or self.flow.write_paused):  # or it goes on when they are not any more
            data, self._backlog = self._backlog, b""
            if data:
                self._parse(data)
            self._read_on()

    def _read_on(self) -> None:
        if self._backlog:
            self._go_on_soon()
        elif self.flow.read_paused and not self.pipeline:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        self._is_parsing = self._has_progressed = True
        self._is_head_read = False
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_read:  # what comes after the body are trailers, which are no headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_progressed = self._is_head_read = True
        handler = self._handler
        path, mark, query = self.url.partition(b"?")
        if b"%" in path:
            path = unquote_to_bytes(path)
        is_ours = path in handler.posts and self.parser.get_method() == b"POST"
        error = self._find_fault(path)
        if error is None and not is_ours:
            self._leave_to_uvicorn()
            # Of a request that offers an upgrade the parser skips the body: it would be read as a request of its own.
            is_last = self._is_surplus or self.parser.should_upgrade()
            self.cycle.keep_alive = self.cycle.keep_alive and not is_last
            return
        is_http11 = self.parser.get_http_version() == "1.1"
        target = path + mark + query if is_ours else b"-"
        exchange = TransportExchange(
            self,
            RequestHead(path.decode("utf-8", "replace"), target, tuple(self.headers)),
            is_http11=is_http11,
            keep_alive=is_http11 and self.parser.should_keep_alive() and not self.parser.should_upgrade(),
        )
        exchange.method = self.parser.get_method().decode("ascii", "replace")
        before: RequestResponseCycle | None = self.cycle
        self.cycle = exchange  # type: ignore[assignment]  # it has all that uvicorn asks of one
        exchange.is_queued = before is not None and not before.response_complete
        if exchange.is_queued:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        self._expect(self._limits.body_timeout_s)
        error = error or handler.check_head(exchange)
        if error is None and exchange.head.length > self._limits.max_body_bytes:
            error = self._body_too_large()
        if error is not None:
            self._refuse_exchange(exchange, error)
        elif self.expect_100_continue and not exchange.is_queued:
            self.transport.write(CONTINUE)

    def _find_fault(self, path: bytes) -> GatewayError | None:
        """Returns the error with which this head is refused; None if it is accepted."""
        size = len(self.url) + sum(len(name) + len(value) + FIELD_BYTES for name, value in self.headers)
        if size > self._limits.max_head_bytes:
            return self._head_too_large()
        names = [name for name, _ in self.headers]
        if names.count(b"host") != 1 and self.parser.get_http_version() == "1.1":  # RFC 9112 3.2
            return InvalidRequest("A request needs one Host header field.")
        if self._is_surplus and path not in self._handler.constant_answers:
            return Overloaded("Too many connections are open; try again in a moment.")
        return None

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        exchange: object = self.cycle
        if isinstance(exchange, TransportExchange):
            self._keep_body(exchange, body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progressed = True
        self._is_parsing = False
        self._due = 0.0
        exchange: object = self.cycle
        if not isinstance(exchange, TransportExchange):
            super().on_message_complete()
        elif exchange.more_body:
            exchange.more_body = False
            self._hand_over(exchange)

    # A body, until it is whole

    def _keep_body(self, exchange: TransportExchange, data: bytes) -> None:
        if not exchange.more_body:  # what follows one that was refused
            return
        if len(exchange.body) + len(data) > self._limits.max_body_bytes:
            self._refuse_exchange(exchange, self._body_too_large())
        elif not self._handler.intake.hold(len(data)):
            self._refuse_exchange(exchange, Overloaded("Too many bodies are arriving at once; try again in a moment."))
        else:
            exchange.held += len(data)
            if isinstance(exchange.body, bytes):
                exchange.body = bytearray(exchange.body)
            exchange.body += data

    def _release(self, exchange: TransportExchange) -> None:
        if exchange.held:
            self._handler.intake.release(exchange.held)
            exchange.held = 0

    def _hand_over(self, exchange: TransportExchange) -> None:
        if exchange.is_queued:
            return
        self._release(exchange)
        if not exchange.has_left:
            self._handler.handle(exchange)

    # What does not arrive in time

    def _expect(self, seconds: float) -> None:
        """Requires a message to arrive within `seconds` from now."""
        self._due = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._check_due)

    def _check_due(self) -> None:
        """Ends what is overdue. One timer serves all deadlines of a connection, which follow one another."""
        self._timer = None
        if not self._due or self.transport.is_closing():
            return
        if self._is_ending:
            self.transport.abort()
            return
        if self.flow.read_paused:  # we do not let it arrive
            self._due = self.loop.time() + self._limits.body_timeout_s
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._check_due)
        elif self._is_parsing or self._missing:
            self._refuse(RequestTimeout("The request did not arrive in time."))
        else:  # a client that has sent nothing expects no answer
            self.transport.close()

    def stop_waiting(self) -> None:
        """Refuses a request that has not arrived whole, because the server is about to end."""
        if (self._is_parsing or self._missing) and not self.transport.is_closing():
            self._refuse(ShuttingDown("The gateway is shutting down."))

    def is_quiet(self, since: float, for_s: float) -> bool:
        """Returns whether no request has been under way or arriving for so long, counted from `since` on."""
        before: RequestResponseCycle | None = self.cycle
        is_idle = (before is None or before.response_complete) and not (self._is_parsing or self._missing)
        return is_idle and self.loop.time() - max(since, self._idle_since) >= for_s

    def _refuse(self, error: GatewayError) -> None:
        """Gives up on the message that is arriving, and the connection once the requests before it are answered."""
        cycle: object = self.cycle
        if isinstance(cycle, TransportExchange) and cycle.more_body:
            self._refuse_exchange(cycle, error)
        elif isinstance(cycle, RequestResponseCycle) and cycle.more_body:
            self.transport.close()  # its app waits for the body
        elif isinstance(cycle, TransportExchange | RequestResponseCycle) and not cycle.response_complete:
            cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            exchange = TransportExchange(self, UNREADABLE, is_http11=True, keep_alive=False)
            exchange.method = "-"
            self.cycle = exchange  # type: ignore[assignment]  # it has all that uvicorn asks of one
            self._refuse_exchange(exchange, error)

    def _refuse_exchange(self, exchange: TransportExchange, error: GatewayError) -> None:
        """Has the handler answer with the error; the rest of the body is not read."""
        self._release(exchange)
        exchange.error, exchange.body = error, b""
        exchange.keep_alive = exchange.more_body = False
        self._hand_over(exchange)

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"The request's head is larger than {self._limits.max_head_bytes} bytes.")

    def _body_too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._limits.max_body_bytes} bytes.")

    # From the transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (exchange := self.exchange) is not None:
            self.exchange = None
            exchange.lost()
        self.stall.disarm()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_surplus:
            self._handler.intake.lose_surplus(self.transport)
        # An exchange and its connection know each other: only the garbage collector would free what it has of a body.
        for cycle in (self.cycle, *(queued for queued, _ in self.pipeline)):
            if isinstance(cycle, TransportExchange):
                self._release(cycle)
                cycle.body = b""
        self._backlog = b""
        self.cycle = None  # type: ignore[assignment]  # as before the first request
        self.pipeline.clear()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stall.arm()
        if self.exchange is not None:
            self.exchange.paused()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stall.disarm()
        if self.exchange is not None:
            self.exchange.resumed()
        self._read_on()  # it was held up until the client had read what was sent

    def on_response_complete(self) -> None:
        """Does what uvicorn's does, but makes no new timer for each answer: a timer that is early looks again later."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self.stall.arm()  # what is buffered still has to be read in time
            return
        if self.flow.write_paused:  # or answers to a client that sends on, and reads none, would pile up
            self.flow.pause_reading()
        elif self._backlog:
            self._go_on_soon()
        elif self.flow.read_paused:
            self.flow.resume_reading()
        self._has_read = False
        self._idle_since = self.loop.time()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.timeout_keep_alive_task is None:
            self._watch_for(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if self._has_read:
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

    # For exchanges

    @property
    def default_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self.server_state.default_headers

    def close_after_answer(self) -> None:
        """Close the connection once its last answer has been sent.

        A connection closed with something unread is reset, and a client that is still sending would lose the answer.
        """
        is_read = not (self._is_parsing or self._missing)
        if is_read or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._is_ending = True
        self.transport.write_eof()
        self._expect(LINGER_S)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work)
        self.tasks.add(task)  # type: ignore[arg-type]  # of any result
        task.add_done_callback(self.tasks.discard)
        return task

    def log(self, exchange: TransportExchange, status: int) -> None:
        """Logs what uvicorn's access log does, without the query, in which some clients send keys."""
        client = "{}:{}".format(*self.client) if self.client else ""
        version = "1.1" if exchange.takes_chunks else "1.0"
        line = (client, exchange.method, quote(exchange.head.path), version, status)
        self.access_logger.info('%s - "%s %s HTTP/%s" %d', *line)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:  # Any: uvicorn's own
        """Starts the next request in the pipeline; uvicorn calls this."""
        if isinstance(cycle, TransportExchange):
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
