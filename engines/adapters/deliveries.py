"""The thread that calls receivers, so that the engine's own thread does not wait for them.

In: tokens and failures, from any thread. Out: calls to receivers, one at a time. Knows neither engine nor Triton.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.reference.engine import TokenOutput
from engines.reference.runner import Receiver

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Mail:
    """The tokens and the error that wait for one receiver."""

    outputs: list[TokenOutput] = field(default_factory=list)
    error: str | None = None

    def hand_to(self, receiver: Receiver) -> None:
        if self.outputs:
            receiver.tokens(self.outputs)
        if self.error is not None:
            receiver.failed(self.error)


class Deliveries:
    """Calls receivers on a thread: a response costs Triton's stub a round trip, for which no engine's step should wait.

    Receivers are served in the order of their oldest token, but those whose answer begins come first: with hundreds in
    flight a first token would else wait for everybody's next tokens. All tokens that have come for a receiver go to it
    in one call: under load, responses grow instead of falling behind.
    """

    def __init__(self) -> None:
        self._beginning: OrderedDict[Receiver, Mail] = OrderedDict()
        self._going_on: OrderedDict[Receiver, Mail] = OrderedDict()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="deliveries", daemon=True)
        self._thread.start()

    def tokens(self, receiver: Receiver, outputs: Sequence[TokenOutput]) -> None:
        begins = bool(outputs) and outputs[0].position == 1
        with self._changed:
            self._of(receiver, self._beginning if begins else self._going_on).outputs += outputs
            self._changed.notify()

    def failed(self, receiver: Receiver, message: str) -> None:
        with self._changed:
            self._of(receiver, self._going_on).error = message
            self._changed.notify()

    def close(self) -> None:
        """End the thread when all that waits has been delivered."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _of(self, receiver: Receiver, queue: OrderedDict[Receiver, Mail]) -> Mail:
        """Returns the mail that waits for the receiver already, in either queue; else new mail in `queue`."""
        if receiver in self._beginning:
            return self._beginning[receiver]
        return queue.setdefault(receiver, Mail())

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            receiver, mail = taken
            try:
                mail.hand_to(receiver)
            # Edge of the thread: one failed delivery must not end all others.
            except Exception:
                logger.exception("a delivery failed")

    def _take(self) -> tuple[Receiver, Mail] | None:
        with self._changed:
            while not (queue := self._beginning or self._going_on):
                if self._is_closing:
                    return None
                self._changed.wait()
            return queue.popitem(last=False)
