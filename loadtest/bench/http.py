"""Control calls over plain HTTP to servers of this machine, and ports for them."""

import socket
import urllib.request

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a proxy does not see this machine's ports


def fetch(url: str, body: bytes | None = None, timeout_s: float = 10.0) -> bytes:
    """What a GET, or with a body a POST, is answered. OSError, of which HTTPError is one, if it is not 2xx."""
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    request = urllib.request.Request(url, body, headers)
    with _open(request, timeout=timeout_s) as answer:
        content: bytes = answer.read()
        return content


def free_ports(count: int) -> list[int]:
    """Ports that are free together now; all are held while they are looked for, so that none comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
