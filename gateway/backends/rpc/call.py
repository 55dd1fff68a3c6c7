"""One gRPC call as its caller sees it: a Receiver gets its messages and its Outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Status(IntEnum):
    """gRPC's status codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. `detail`: a text that may quote the server. `is_sent`: the whole request was sent before."""

    status: Status
    detail: str = ""
    is_sent: bool = True


class Receiver(Protocol):
    """Receives one call: `receive` any number of times, then `closed` once. Nothing is called after `H2Stream.cancel`.

    Both are plain calls from the event loop, never from inside `H2Client.start`. They must not raise.
    """

    def receive(self, messages: Sequence[bytes], /) -> None:
        """Receives `messages`, the serialized responses of one read, in order, at least one."""
        ...

    def closed(self, outcome: Outcome) -> None: ...
