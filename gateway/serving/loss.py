"""What a request has lost, and when it may go on: alone, if it may have been the reason; else at once.

May have been: its last engine gave it no token; or it has lost two, with few tokens in between.

In: each loss of its engine. Out: Survivor.go_elsewhere, as soon as it may; or the error that the request ends with.
Knows neither how a request begins nor how it ends.
"""

import asyncio
import logging
import time
from typing import Protocol

from gateway.errors import BackendError, BackendUnavailable, GatewayError
from gateway.routing import Fleet, Lease
from gateway.serving.reply import Reply
from gateway.serving.work import Attempt, Work

logger = logging.getLogger(__name__)
LOOK_S = 0.02  # from one look at a request that has lost its backend to the next
JUDGED_S = 0.25  # after a second loss: by then all workers have noted what was lost with it
MOST_LOSSES = 3
FEW = 16  # tokens: what an answer kills its engine with, it has come to by then at the next engine too


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

    def __init__(self, survivor: Survivor, work: Work, lease: Lease, fleet: Fleet) -> None:
        self.loss: BackendError | None = None
        self._survivor, self._work, self._lease = survivor, work, lease
        self._quarantine, self._most_s = fleet.quarantine, fleet.max_outage_s
        self._lost_at = time.monotonic()  # the first time since its last token
        self._count = self._in_a_row = 0  # in a row: with few tokens in between
        self._is_suspect = False  # it may have been the reason of the last loss, and has to go on alone
        self._is_unproven = False  # it goes on after a loss, and has not had enough tokens since
        self._is_doubtful = self._waits_for_judgement = False  # it has lost two engines in a row
        self._doubted_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def outlives(self, error: BackendError, reply: Reply) -> bool:
        """Whether the request goes on after this loss, or waits until it may."""
        attempt = self._survivor.attempt
        if not self._note(error, attempt) or self._work.request.pin is not None:
            return False
        if attempt is not None and not attempt.may_move(error):
            return False
        self.loss = error
        if self._is_suspect:
            reply.wait()
            self._look_later()
        else:
            self._survivor.look()
        return True

    def look(self) -> None:
        """Goes on as soon as it may, and then waits for tokens. Raises what ends the request: its own error."""
        self._stop_looking()
        if self.loss is not None:
            self._go_on(self.loss)
        elif (attempt := self._survivor.attempt) is not None and attempt.has_tokens(FEW if self._is_doubtful else 0):
            self._stop_being_unproven()
            self._stop_being_doubtful()
        if self.loss is not None or self._is_unproven:
            self._look_later()

    def end(self) -> None:
        """The request has ended, however it did."""
        self.loss = None
        self._stop_being_unproven()
        self._stop_being_doubtful()
        self._stop_looking()

    def _note(self, error: BackendError, attempt: Attempt | None) -> bool:
        """Returns whether the request may have another backend after this one: it may have been the reason."""
        self._stop_being_unproven()
        if has_tokens := attempt is not None and attempt.has_tokens():
            self._lost_at = time.monotonic()
        if isinstance(error, BackendUnavailable) and not error.was_lost:
            return True
        self._stop_being_doubtful()
        if attempt is not None and attempt.has_tokens(FEW):
            self._in_a_row = 0
        was_suspect, self._is_suspect = self._is_suspect, self._in_a_row > 0 or not has_tokens
        self._count += 1
        self._in_a_row += 1
        if self._count == MOST_LOSSES or (was_suspect and not has_tokens):  # a suspect was alone until its first token
            self._quarantine.refuse(self._work.digest())
            return False
        if self._in_a_row > 1:
            self._is_doubtful = self._waits_for_judgement = True
            self._quarantine.doubt(1)
            self._doubted_at = time.monotonic()
        return True

    def _is_judged(self, loss: BackendError) -> bool:
        """Returns whether it is known what two losses in a row mean. Raises the loss if this was the reason."""
        if self._is_doubtful and self._quarantine.refused_at >= self._doubted_at - JUDGED_S:  # it was another one
            self._stop_being_doubtful()
            self._is_suspect = False
        elif self._waits_for_judgement and time.monotonic() >= self._doubted_at + JUDGED_S:
            if self._quarantine.doubtful == 1:  # nothing else was at both engines
                self._quarantine.refuse(self._work.digest())
                raise loss
            self._waits_for_judgement = False
        return not self._waits_for_judgement

    def _go_on(self, loss: BackendError) -> None:
        # Those with tokens go on at once, and one that is suspect not beside them: it might take them along.
        self._is_unproven = self._is_judged(loss) and self._quarantine.enter(alone=self._is_suspect)
        if self._is_unproven:
            if self._is_suspect:  # one with the same content may have lost two meanwhile
                self._quarantine.check(self._work.digest)
            self.loss = None  # before it begins elsewhere, where it may have another one
            barred, go_elsewhere = self._work.barred, self._survivor.go_elsewhere
            no_other = go_elsewhere(barred | {self._lease.route.backend}, loss) and go_elsewhere(barred, loss)
            if no_other is None:
                logger.info("request %s goes on: %s", self._work.request.request_id, loss.message)
                return
            self.loss = loss
            self._stop_being_unproven()
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

    def _stop_being_unproven(self) -> None:
        if self._is_unproven:
            self._is_unproven = False
            self._quarantine.leave()

    def _stop_being_doubtful(self) -> None:
        if self._is_doubtful:
            self._is_doubtful = self._waits_for_judgement = False
            self._quarantine.doubt(-1)
