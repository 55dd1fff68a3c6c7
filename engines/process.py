"""The life of a server process: it binds a port or prints one error line, prints a ready line, and ends on a signal.

In: the serving coroutine. Out: an exit code. Knows no engine.
"""

import asyncio
import gc
import http.client
import signal
import socket
import sys
import urllib.request
from collections.abc import Coroutine
from typing import Any

# A proxy of the environment does not see this machine's ports.
open_direct = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class CannotStart(Exception):
    """Something that the operator has to mend; the message is the whole report."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket bound to an address, or raises CannotStart. Port 0 lets the system choose."""
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
    """Raises CannotStart for a taken port: servers that bind their own report that in many lines or not at all."""
    bind(host, port).close()


def cannot_listen(host: str, port: int, reason: str | None) -> CannotStart:
    return CannotStart(f"cannot listen on {host}:{port}: {reason}")


def stop_signal() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets. Call it before `announce`."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def announce(addresses: str) -> None:
    """Prints the one line on stdout that a supervisor waits for."""
    sys.stdout.write(f"ready {addresses}\n")
    sys.stdout.flush()


def run(serving: Coroutine[Any, Any, None]) -> int:
    """Runs until `serving` returns. Returns the exit code of the process."""
    try:
        asyncio.run(serving)
    except CannotStart as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    return 0


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Returns whether a GET of `url` is answered with status 200 in time."""
    try:
        with open_direct(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def prefer_latency() -> None:
    """Shortens waits for the interpreter and garbage collections, for a process whose threads compute and answer.

    Objects alive now live until the end, so no collection needs to visit them again. A thread that returns from a
    system call gets the interpreter from a computing one after 1 ms; Python's default is 5 ms.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)
