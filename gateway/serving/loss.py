"""What a request has lost, and when it may go on: alone, if it may have been the reason; else at once.

In: each loss of its engine. Out: Survivor.go_elsewhere, as soon as it may; or the error that the request ends with.
Knows neither how a request begins nor how it ends.
"""

import asyncio
import logging
import time
from typing import Protocol

from gateway.errors import BackendError, BackendUnavailable, GatewayError
from gateway.routing import Lease, Router
from gateway.serving.reply import Reply
from gateway.serving.work import Attempt, Work

logger = logging.getLogger(__name__)
LOOK_S = 0.02  # from one look at a request that has lost its backend to the next
MOST_LOSSES = 3  # with tokens in between


class Survivor(Protocol):
    """A request that has lost its backend."""

    attempt: Attempt | None

    def go_elsewhere(self, barred: frozenset[str], error: Exception) -> GatewayError | None:
        """Goes on at a backend that is not barred. Returns why there is none; then it stays where it is."""
        ...

    def look(self) -> None:
        """Calls `Losses.look`, and ends with the error that this raises."""
        ...


class Losses:
    """One request's, from the first one to its end. `loss`: the last one, while the request waits to go on."""

    def __init__(self, survivor: Survivor, work: Work, lease: Lease, router: Router) -> None:
        self.loss: BackendError | None = None
        self._survivor, self._work, self._lease = survivor, work, lease
        self._quarantine, self._most_s = router.find_quarantine(work.request.model)
        self._lost_at = time.monotonic()  # the first time since its last token
        self._count = self._count_since_token = 0
        self._suspicions = 0  # how many of these without a token from the backend that was lost
        self._is_unproven = False  # it goes on after a loss, and has had no token since
        self._timer: asyncio.TimerHandle | None = None

    def outlives(self, error: BackendError, reply: Reply) -> bool:
        """Whether the request goes on after this loss, or waits until it may."""
        attempt = self._survivor.attempt
        may_go_on = self._note(error, has_tokens=attempt is not None and attempt.has_tokens())
        if not may_go_on or self._work.request.pin is not None:
            return False
        if attempt is not None and not attempt.may_move(error):
            return False
        self.loss = error
        if self._suspicions:
            reply.wait()
            self._look_later()
        else:
            self._survivor.look()
        return True

    def look(self) -> None:
        """Goes on as soon as it may, and then waits for a token. Raises what ends the request: its own error."""
        self._stop_looking()
        if self.loss is not None:
            self._go_on(self.loss)
        elif (attempt := self._survivor.attempt) is not None and attempt.has_tokens():
            self._leave_quarantine()
        if self.loss is not None or self._is_unproven:
            self._look_later()

    def end(self) -> None:
        """The request has ended, however it did."""
        self.loss = None
        self._leave_quarantine()
        self._stop_looking()

    def _note(self, error: BackendError, *, has_tokens: bool) -> bool:
        """Returns whether the request may have another backend after this one: it may have been the reason."""
        self._leave_quarantine()
        if has_tokens:
            self._lost_at, self._count_since_token, self._suspicions = time.monotonic(), 0, 0
        if isinstance(error, BackendUnavailable) and not error.was_lost:
            return True
        self._count += 1
        self._count_since_token += 1
        self._suspicions += not has_tokens
        if self._suspicions == 2:
            self._quarantine.refuse(self._work.digest())
        return self._count_since_token < 2 and self._count < MOST_LOSSES

    def _go_on(self, loss: BackendError) -> None:
        # Those with tokens go on at once, and one without not beside them: it might take them along.
        self._is_unproven = self._quarantine.enter(alone=self._suspicions > 0)
        if self._is_unproven:
            if self._suspicions:  # one with the same content may have lost two meanwhile
                self._quarantine.check(self._work.digest)
            self.loss = None  # before it begins elsewhere, where it may have another one
            barred, go_elsewhere = self._work.barred, self._survivor.go_elsewhere
            no_other = go_elsewhere(barred | {self._lease.route.backend}, loss) and go_elsewhere(barred, loss)
            if no_other is None:
                logger.info("request %s goes on: %s", self._work.request.request_id, loss.message)
                return
            self.loss = loss
            self._leave_quarantine()
            if not isinstance(no_other, BackendUnavailable):
                raise loss
        if time.monotonic() - self._lost_at >= self._most_s:
            raise loss

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._survivor.look)

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave_quarantine(self) -> None:
        if self._is_unproven:
            self._is_unproven = False
            self._quarantine.leave()
