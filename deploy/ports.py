"""TCP ports of this machine: whether one is taken, and free ones to use."""

import contextlib
import socket

LOCALHOST = "127.0.0.1"


def is_taken(port: int, host: str = LOCALHOST) -> bool:
    """Whether a server could not listen there now."""
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT after an earlier run do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
        return False


def find_free(count: int) -> list[int]:
    """Distinct ports that nobody listens on; held together while they are chosen, then released."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOCALHOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def listens(port: int) -> bool:
    """Whether a server accepts connections there now."""
    with contextlib.suppress(OSError), socket.create_connection((LOCALHOST, port), timeout=1.0):
        return True
    return False
