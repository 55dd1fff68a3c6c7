"""Parses the address of an HTTP server: a TCP port, or a socket in the file system, written as in nginx.

In: `http://host:port` or `http://unix:/path/of.sock:`, with or without a request's path behind it. Out: the socket's
path, and the URL to request there. Pure.
"""

from ipaddress import ip_address
from typing import NamedTuple

UNIX = "http://unix:/"
LOCALHOST = "http://localhost"  # for requests through a socket, which has no host name


class Target(NamedTuple):
    """An address: the path of a socket, None for TCP, and the URL to request there."""

    socket_path: str | None
    url: str


def parse_target(url: str) -> Target:
    """Returns a URL without a socket unchanged. Without a colon after the socket, the request's path is empty."""
    if not url.startswith(UNIX):
        return Target(None, url)
    path, _, rest = url[len(UNIX) - 1 :].partition(":")
    return Target(path, LOCALHOST + rest)


def make_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a server that listens at `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
