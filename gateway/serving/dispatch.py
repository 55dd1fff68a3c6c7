"""The spine: one request from its bytes to the end of its answer, whatever its kind.

It is understood, gets a lease of a backend, and begins there; the backend's calls feed the reply; the lease is released
at the end. A request whose backend failed goes on at another, once; one that has lost its backend, as loss.py says. All
calls are plain: in a task of its own a request would go on only when everything that arrived with it has been read.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gateway.access import Access, Claim
from gateway.client_http import ClientLeft
from gateway.core import Route
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendLost,
    BackendTimeout,
    GatewayError,
    InternalError,
    NeedRefused,
)
from gateway.metrics import Metrics
from gateway.routing import Fleet, Lease, MustWait, RetryBudget, Router, Ticket
from gateway.serving.loss import Losses
from gateway.serving.reply import Reply
from gateway.serving.sender import Senders
from gateway.serving.work import Attempt, LocalAnswer, Understood, Work

logger = logging.getLogger(__name__)
# Without anybody waiting it is client_write_timeout_s. A client that reads empties a full buffer sooner than an engine
# fills it; one on a bad line may need this long for a retransmission.
UNREAD_S = 5.0
AWAY = (BackendFull, BackendTimeout, NeedRefused)  # why there is no other backend matters more


@dataclass(frozen=True, slots=True)
class Desk:
    """What all dispatches of a worker share. `live`: those that are under way. `retries`: what they may spend."""

    router: Router
    metrics: Metrics
    live: "set[Dispatch]"
    retries: RetryBudget
    senders: Senders
    access: Access


class Dispatch:
    """One request on its way. A client_http.Listener: a client that leaves cancels it."""

    def __init__(self, desk: Desk, reply: Reply) -> None:
        self._desk = desk
        self._reply = reply
        self._claim: Claim | None = None  # on its key's limits
        # Tokens of the prompt and of the answer, once it has been at a backend.
        self._used: tuple[int, int] | None = None
        self._fleet: Fleet  # that of its model, from the moment on in which it has work
        self.work: Work | None = None
        self.lease: Lease | None = None
        self.attempt: Attempt | None = None
        self._ticket: Ticket | None = None  # while it waits for a backend
        self._has_moved = False  # since a backend failed
        self._has_left = False  # a backend that was stuck
        self._blamed: str | None = None  # the backend that a fault was held against
        self._losses: Losses | None = None  # from the first one on
        reply.on_end = self._end
        self._desk.live.add(self)

    @property
    def loss(self) -> BackendError | None:
        """That of its backend, while it waits to go on."""
        return None if self._losses is None else self._losses.loss

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
            self._fleet = self._desk.router.find(work.request.model)
            self._fleet.quarantine.check(work.digest)
            self.work = work
            if (caller := reply.exchange.caller) is not None and caller.limits is not None:
                self._claim = self._desk.access.meter.claim(caller, work.ask)
                reply.show_limits(self._claim.lines)
            self._place(work)

    def _place(self, work: Work) -> None:
        """Begins at a backend, or waits for one."""
        try:
            self.lease = lease = self._fleet.lease(work.request, work.barred)
        except MustWait:
            self._reply.wait()
            self._ticket = Ticket(work.request, work.barred, self._admitted, self._refused)
            self._fleet.wait(self._ticket, self._desk.senders.name(self._reply.exchange))
        else:
            self._begin(work, lease.route)

    def _admitted(self, lease: Lease) -> None:
        """Begins at the backend that it has waited for."""
        assert self.work is not None  # or it would not wait
        self._ticket, self.lease = None, lease
        if (error := self._guard(self._begin, self.work, lease.route)) is not None:
            self._end(error)

    def _stop_waiting(self) -> None:
        if (ticket := self._ticket) is not None:
            self._ticket = None
            self._fleet.leave(ticket)

    def _refused(self, error: GatewayError) -> None:
        self._ticket = None
        self._end(error)

    def _begin(self, work: Work, route: Route) -> None:
        self._reply.start(route)
        self.attempt = work.begin(route, self._reply)

    def _end(self, error: Exception | None) -> None:
        """Go on elsewhere after an error, if that is possible; else release what the attempt held, and finish."""
        if self not in self._desk.live or (isinstance(error, BackendError) and self.loss is not None):
            return  # it has ended, or its other choices have lost their backend too
        self._stop_waiting()
        if (work := self.work) is not None and (lease := self.lease) is not None:
            self._judge(work, lease, error)
            if isinstance(error, BackendError) and error.is_down and self._outlives(work, lease, error):
                return
            if error is not None and self._may_move(work, error):
                self._has_moved = True
                if (no_other := self.go_elsewhere(work.barred | {lease.route.backend}, error)) is None:
                    logger.info("request %s goes on at %s: %s", self._reply.request_id, lease.route.backend, error)
                    return
                if not self._is_exempt(error):
                    self._desk.retries.earn(1)
                if isinstance(error, AWAY) and not self._reply.has_begun:
                    error = no_other
        self._finish(error)

    def _outlives(self, work: Work, lease: Lease, error: BackendError) -> bool:
        self._has_moved = True
        if self._losses is None:
            self._losses = Losses(self, work, lease, self._fleet)
        return self._losses.outlives(error, self._reply)

    def look(self) -> None:
        """After a loss: goes on as soon as it may. Or ends, with its own error."""
        assert self._losses is not None  # or nothing would call
        if (error := self._guard(self._losses.look)) is not None and self.lease is not None:
            self._finish(error)

    def _release(self, work: Work, lease: Lease, error: Exception | None) -> None:
        attempt, self.attempt, self.lease = self.attempt, None, None
        # Counted before the lease is closed: whoever sees that nothing is in flight finds every answer counted.
        if attempt is not None:
            if self._reply.exchange.caller is not None:
                self._used = attempt.count()
            self._guard(attempt.end, error)
        lease.close()
        self._fleet.admission.note_freed()

    def _judge(self, work: Work, lease: Lease, error: Exception | None) -> None:
        """Note what the end shows of the backend. A client that left, and a request that was refused, show nothing."""
        backend = lease.route.backend
        if isinstance(error, BackendError) and error.is_down:
            self._fleet.healths[backend].doubt(error.message)
        is_measured = work.request.pin is not None and work.request.run is not None
        if is_measured or isinstance(error, BackendFull):
            return
        if isinstance(error, BackendError):
            if self._blamed is None:
                self._blamed = backend
                self._fleet.ejection.note_end(backend, error)
            else:  # one that fails at two backends may be the reason
                self._fleet.ejection.retract_fault(self._blamed)
        elif error is None and self.attempt is not None and self.attempt.has_answered():
            self._desk.retries.earn()
            self._fleet.ejection.note_end(backend, None)

    def _may_move(self, work: Work, error: Exception) -> bool:
        if work.request.pin is not None or self._has_moved:
            return False
        if not isinstance(error, (BackendError, NeedRefused)):
            return False
        if self.attempt is not None and not self.attempt.may_move(error):
            return False
        return self._is_exempt(error) or self._desk.retries.spend()

    def _is_exempt(self, error: Exception) -> bool:
        """Whether to try again after it costs no retry: there is no other way, or the engine was lost."""
        return isinstance(error, (BackendFull, NeedRefused)) or (isinstance(error, BackendError) and error.is_down)

    def leave(self, stuck: Collection[str]) -> None:
        """Goes on elsewhere if it is at one of these backends, and may; else it stays, for the engine may wake up.

        Once; and where the other one fails, it may go on once more.
        """
        work, lease = self.work, self.lease
        if work is None or lease is None or self.loss is not None or lease.route.backend not in stuck:
            return
        error = BackendLost(f"{lease.route.backend} generates nothing")
        if not self._has_left and self._may_move(work, error):
            self._has_left = self.go_elsewhere(work.barred.union(stuck), error) is None

    def go_elsewhere(self, barred: frozenset[str], error: Exception | None = None) -> GatewayError | None:
        """Goes on at a backend that is not barred. Returns why there is none; then it stays where it is."""
        work, lease, attempt = self.work, self.lease, self.attempt
        assert work is not None
        assert lease is not None
        try:
            self._fleet.move(lease, work.request, barred)
        except GatewayError as no_other:
            return no_other.with_traceback(None)
        steps = (self._begin, work, lease.route) if attempt is None else (attempt.move, lease.route, error)
        if (failed := self._guard(*steps)) is not None:
            self._end(failed)
        return None

    def _finish(self, error: Exception | None) -> None:
        """Releases what it holds, and ends. Only here does a client get the error that its request ended with."""
        if (work := self.work) is not None and (lease := self.lease) is not None:
            self._release(work, lease, error)
        self._desk.live.discard(self)
        if self._losses is not None:
            self._losses.end()
        # The reply and the losses refer to us: only the garbage collector would free all three.
        self.work = self._losses = self._reply.on_end = None
        if (used := self._used) is not None and (caller := self._reply.exchange.caller) is not None:
            self._desk.access.usage.count(caller.name, used)
        if self._claim is not None:
            self._desk.access.meter.settle(self._claim, used or (0, 0))
        if isinstance(error, GatewayError):
            if self._reply.route is None:
                self._desk.metrics.refuse(error)
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
        elif self in self._desk.live:
            self.start(understood.result)
        else:
            understood.exception()  # nobody waits for it, and asyncio would log it

    def fail(self, error: GatewayError) -> None:
        """Ends the request with an error of the gateway's own."""
        stop = self._end if self.attempt is None or self.loss is not None else self.attempt.stop
        stop(error)

    def give_place(self) -> None:
        """Ends if its client does not read: another request waits for its place at the engine."""
        if self.lease is not None and self._reply.is_unread(UNREAD_S):
            self._reply.exchange.abort()
            self.left()

    def left(self) -> None:
        self._end(ClientLeft())

    def paused(self) -> None:
        self._reply.pause()
        if self.attempt is not None:
            self.attempt.pause()

    def resumed(self) -> None:
        self._reply.paused_at = None
        if self.attempt is not None:
            self.attempt.resume()
