"""TCP ports of this machine: whether one is taken, and free ones to use."""

import contextlib
import random
import socket

from engines.process import CannotStart, check_free

LOCALHOST = "127.0.0.1"
NOT_GIVEN_OUT = range(20_000, 32_000)  # to outgoing connections, nor to servers that ask for any port


def is_taken(port: int) -> bool:
    """Returns True if a server could not listen there now."""
    try:
        check_free(LOCALHOST, port)
    except CannotStart:
        return True
    return False


def find_free(count: int) -> list[int]:
    """Returns distinct ports that nobody listens on. It holds them all while it chooses, then releases them.

    The kernel gives out none of them by itself meanwhile: an engine takes its port half a minute later.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe, port = held.enter_context(socket.socket()), random.choice(NOT_GIVEN_OUT)
            with contextlib.suppress(OSError):
                probe.bind((LOCALHOST, port))
                found.append(port)
    return found


def listens(port: int) -> bool:
    """Returns whether a server accepts connections there now."""
    with contextlib.suppress(OSError), socket.create_connection((LOCALHOST, port), timeout=1.0):
        return True
    return False
