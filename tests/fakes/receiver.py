"""A receiver of one gRPC call that records what it receives, and every call after the end."""

from collections.abc import Callable, Sequence

from gateway.backends.rpc.call import Outcome, Status
from gateway.backends.rpc.h2_stream import H2Stream
from tests.fakes.sink import settled


class RecordingReceiver:
    """`reaction`, if given, runs inside every receive()."""

    def __init__(self, reaction: Callable[["RecordingReceiver"], None] | None = None) -> None:
        self.received: list[bytes] = []
        self.batches: list[int] = []
        self.outcome: Outcome | None = None
        self.stream: H2Stream | None = None
        self.breaches: list[str] = []
        self.is_cancelled = False
        self._reaction = reaction

    def receive(self, messages: Sequence[bytes]) -> None:
        self._check("receive")
        if not messages:
            self.breaches.append("no messages at all")
        self.received.extend(messages)
        self.batches.append(len(messages))
        if self._reaction is not None:
            self._reaction(self)

    def closed(self, outcome: Outcome) -> None:
        self._check("closed")
        self.outcome = outcome

    def cancel(self) -> None:
        assert self.stream is not None
        self.is_cancelled = True
        self.stream.cancel()

    @property
    def status(self) -> Status | None:
        return None if self.outcome is None else self.outcome.status

    async def ended(self) -> Outcome:
        await settled(lambda: self.outcome is not None, "the call's end")
        assert self.outcome is not None
        return self.outcome

    def _check(self, method: str) -> None:
        if self.outcome is not None or self.is_cancelled:
            self.breaches.append(f"{method} after the end")
