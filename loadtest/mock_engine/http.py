"""Blocking control calls to servers on this machine, and free ports for them."""

import socket
import urllib.request

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a proxy cannot reach this machine's ports


def fetch(url: str, body: bytes | None = None, timeout_s: float = 10.0) -> bytes:
    """Returns the answer to a GET, or with a body to a POST. Raises OSError (HTTPError is one) if it is no 2xx."""
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = urllib.request.Request(url, body, headers)
    with _open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content


def free_ports(count: int) -> list[int]:
    """Finds distinct ports that are free now: each is held until all are found."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
