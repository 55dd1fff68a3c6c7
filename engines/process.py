"""What every server process of ours does: a port or one clear line, a ready line, an end on the first signal.

In: the serving coroutine. Out: an exit code. Knows no engine.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable


class CannotStart(Exception):
    """Something the operator has to put right; the message is the whole report."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, or CannotStart. Port 0 lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is named; on, it holds a stream's first token for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise cannot_listen(host, port, exc.strerror) from exc
    return listener


def check_free(host: str, port: int) -> None:
    """For servers that bind for themselves, and report a taken port in many lines or not at all."""
    bind(host, port).close()


def cannot_listen(host: str, port: int, reason: str | None) -> CannotStart:
    return CannotStart(f"cannot listen on {host}:{port}: {reason}")


def stop_signal() -> asyncio.Event:
    """Set at the first SIGTERM or SIGINT from now on; call it before saying that one is ready."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def announce(addresses: str) -> None:
    """The one line on stdout that a supervisor waits for."""
    sys.stdout.write(f"ready {addresses}\n")
    sys.stdout.flush()


def run(serving: Awaitable[None]) -> int:
    """Serves until it returns; the exit code of the process."""

    async def main() -> None:
        await serving

    try:
        asyncio.run(main())
    except CannotStart as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    return 0
