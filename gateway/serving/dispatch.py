"""The spine: one request from its bytes to the end of its answer, whatever its kind.

It is understood, gets a lease of a backend, and begins there; the backend's calls feed the reply; the lease is released
at the end. A request that failed before any of its answer existed is tried once more elsewhere. All calls are plain: in
a task of its own a request would go on only when everything that arrived with it has been read.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.client_http import ClientLeft
from gateway.errors import BackendUnavailable, GatewayError, InternalError, NeedRefused
from gateway.metrics import Metrics
from gateway.routing import Lease, Router
from gateway.serving.reply import Reply
from gateway.serving.work import Attempt, LocalAnswer, Understood, Work

logger = logging.getLogger(__name__)


class Dispatch:
    """One request on its way. A client_http.Listener: a client that leaves cancels it.

    `live`: the set of all dispatches that are under way.
    """

    __slots__ = ("_attempt", "_avoid", "_is_paused", "_lease", "_live", "_metrics", "_reply", "_router", "_work")

    def __init__(self, router: Router, metrics: Metrics, reply: Reply, live: "set[Dispatch]") -> None:
        self._router = router
        self._metrics = metrics
        self._reply = reply
        self._live = live
        self._work: Work | None = None
        self._lease: Lease | None = None
        self._attempt: Attempt | None = None
        self._avoid: frozenset[str] = frozenset()  # the backend that has failed already
        self._is_paused = False
        reply.on_end = self._end
        live.add(self)

    def start(self, understand: Callable[[], Understood]) -> None:
        if (error := self._guard(self._serve, understand)) is not None:
            self._end(error)

    def _serve(self, understand: Callable[[], Understood]) -> None:
        """Understand the request, lease a backend, begin there; from then on the backend's calls feed the reply."""
        reply, work = self._reply, understand()
        if isinstance(work, asyncio.Future):
            work.add_done_callback(self._go_on)
        elif isinstance(work, LocalAnswer):
            reply.send_json(work.body)
            self._finish(None)
        elif reply.exchange.has_left:
            self._finish(ClientLeft())
        else:
            self._work = work
            self._lease = lease = self._router.lease(work.request, self._avoid | work.barred)
            reply.start(lease.route)
            self._attempt = work.begin(lease.route, reply)
            if self._is_paused:
                self._attempt.pause()

    def _end(self, error: Exception | None) -> None:
        """Release what the attempt held. Then finish; or, if nothing of an answer exists, try once more elsewhere."""
        if self not in self._live:
            return
        work, lease = self._work, self._lease
        if work is not None and lease is not None:
            self._release(work, lease, error)
            if self._may_retry(work, error):
                self._avoid = frozenset({lease.route.backend})
                self.start(lambda: work)
                return
        self._finish(error)

    def _release(self, work: Work, lease: Lease, error: Exception | None) -> None:
        attempt, self._attempt, self._lease = self._attempt, None, None
        # Counted before the lease is closed: whoever sees that nothing is in flight finds every answer counted.
        if attempt is not None:
            self._guard(attempt.end, error)
        lease.close()
        if isinstance(error, GatewayError) and error.is_down:
            self._router.mark_unavailable(lease.route.backend, work.request.model)

    def _may_retry(self, work: Work, error: Exception | None) -> bool:
        is_placeable = not (self._reply.has_begun or self._avoid) and work.request.pin is None
        return is_placeable and isinstance(error, BackendUnavailable | NeedRefused)

    def _finish(self, error: Exception | None) -> None:
        """Ends the dispatch. Only here does a client get the error that its request ended with."""
        self._live.discard(self)
        self._work = self._reply.on_end = None  # the reply refers to us: only the garbage collector would free the two
        if isinstance(error, GatewayError):
            if self._reply.route is None:
                self._metrics.refuse(error)
            self._reply.send_error(error)

    def _guard(self, step: Callable[..., None], *arguments: object) -> Exception | None:
        """Returns the error that the step ends with. This outermost edge keeps a fault of ours to one request."""
        try:
            step(*arguments)
        except (GatewayError, ClientLeft) as error:
            return error.with_traceback(None)  # whose frames refer to the body, and by way of a future to the error
        except Exception:
            logger.exception("request %s failed", self._reply.request_id)
            return InternalError()
        return None

    def _go_on(self, understood: "asyncio.Future[Understood]") -> None:
        if understood.cancelled():
            self._end(ClientLeft())
        elif self in self._live:
            self.start(understood.result)
        else:
            understood.exception()  # nobody waits for it, and asyncio would log it

    def fail(self, error: GatewayError) -> None:
        """Ends the request with an error of the gateway's own."""
        if self._attempt is not None:
            self._attempt.stop(error)
        else:
            self._end(error)

    # client_http.Listener

    def left(self) -> None:
        self._end(ClientLeft())

    def paused(self) -> None:
        self._is_paused = True
        if self._attempt is not None:
            self._attempt.pause()

    def resumed(self) -> None:
        self._is_paused = False
        if self._attempt is not None:
            self._attempt.resume()
