"""TCP ports of this machine: whether one is taken, and free ones to use."""

import contextlib
import os
import socket
from itertools import cycle

from engines.process import CannotStart, check_free

LOCALHOST = "127.0.0.1"
NOT_GIVEN_OUT = range(20_000, 32_000)  # to outgoing connections, nor to servers that ask for any port
APART = 509  # ports, from where one process begins to where the next one does
_BEGIN = os.getpid() * APART % len(NOT_GIVEN_OUT)
_PORTS = cycle([*NOT_GIVEN_OUT[_BEGIN:], *NOT_GIVEN_OUT[:_BEGIN]])


def is_taken(port: int) -> bool:
    """Returns True if a server could not listen there now."""
    try:
        check_free(LOCALHOST, port)
    except CannotStart:
        return True
    return False


def find_free(count: int) -> list[int]:
    """Returns distinct ports that nobody listens on. It holds them all while it chooses, then releases them.

    An engine takes its port half a minute later. Until then the kernel gives it to nobody by itself, this function
    returns it only after all others, and other processes begin elsewhere.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe, port = held.enter_context(socket.socket()), next(_PORTS)
            with contextlib.suppress(OSError):
                probe.bind((LOCALHOST, port))
                found.append(port)
    return found


def listens(port: int) -> bool:
    """Returns whether a server accepts connections there now."""
    with contextlib.suppress(OSError), socket.create_connection((LOCALHOST, port), timeout=1.0):
        return True
    return False
