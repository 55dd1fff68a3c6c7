"""A response from its first frame to its last: the only place that knows when an error is a status and when an event.

Frames come from an Answer, one per attempt; bytes go to the Client. Knows no tokens.
"""

from collections.abc import Callable

from gateway.api.answer import Answer, Outbox
from gateway.api.ask import Ask
from gateway.api.client import Client, Headers
from gateway.api.errors import error_body, error_event, error_headers
from gateway.core import Route, Sink
from gateway.errors import GatewayError

JSON = b"application/json"


class Reply:
    """One request's response: `open` an attempt, `deliver` it; whatever went wrong, `refuse`."""

    def __init__(self, client: Client, request_id: str) -> None:
        self.request_id = request_id
        self.backend: str | None = None  # of the last attempt
        self._has_begun = False
        self._client = client
        self._outbox = Outbox()
        self._content_type = JSON
        self._route_headers: Headers = ()

    def open(self, ask: Ask, route: Route) -> Sink:
        """A fresh sink for one attempt; what an earlier one left is dropped."""
        self._outbox = Outbox()
        self.backend = route.backend
        self._route_headers = _name_route(route)
        frames = ask.frames()
        self._content_type = frames.content_type
        return Answer(ask.decoder(), frames, len(ask.request.prompt), self._outbox)

    async def deliver(self, at_end: Callable[[], None]) -> None:
        """Write frames as they come until the answer ends; the status goes out with the first. Raises its error.

        `at_end` is called before the last write: a slow client must not keep an engine at an answer that is over.
        """
        is_last = False
        while not is_last:
            frames, is_last = await self._outbox.take()
            if is_last:
                at_end()
            if not self._has_begun:
                await self._begin(200, self._content_type, _length(frames) if is_last else ())
            await self._client.write(frames, is_last=is_last)

    def give_up(self, error: GatewayError) -> None:
        """End the attempt under way with this error, whatever its engine may still have to say."""
        self._outbox.close(error)

    async def send_json(self, body: bytes, status: int = 200, headers: Headers = ()) -> None:
        await self._begin(status, JSON, [*_length(body), *headers])
        await self._client.write(body, is_last=True)

    async def refuse(self, error: GatewayError) -> None:
        if self._has_begun:
            await self._client.write(error_event(error), is_last=True)
        else:
            await self.send_json(error_body(error), error.status, error_headers(error))

    async def _begin(self, status: int, content_type: bytes, extra: Headers) -> None:
        # Set before the await: whatever fails from here on, there is no second status line.
        self._has_begun = True
        # no-cache and x-accel-buffering: a proxy in between is not to hold tokens back (nginx reads the second).
        fixed = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        own = (b"x-request-id", self.request_id.encode())
        await self._client.start(status, [*fixed, own, *self._route_headers, *extra])


def _name_route(route: Route) -> Headers:
    return ((b"x-crossover-backend", route.backend.encode()), (b"x-crossover-reason", route.reason.encode()))


def _length(body: bytes) -> Headers:
    return ((b"content-length", b"%d" % len(body)),)
