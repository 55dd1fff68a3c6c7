"""Where an HTTP server listens: on a TCP port, or at a socket in the file system, written as nginx writes it.

In: `http://host:port` or `http://unix:/path/of.sock:`, a request's path behind it or none. Out: the socket, and the URL
to ask for there. Pure.
"""

from typing import NamedTuple

UNIX = "http://unix:/"
NAMELESS = "http://localhost"  # what is asked through a socket, which has no name for the host field


class Door(NamedTuple):
    """`socket`: its path, None for TCP."""

    socket: str | None
    url: str


def find_door(url: str) -> Door:
    """A URL without a socket comes back as it is; one whose socket has no colon behind it asks for nothing there."""
    if not url.startswith(UNIX):
        return Door(None, url)
    path, _, rest = url[len(UNIX) - 1 :].partition(":")
    return Door(path, NAMELESS + rest)


def make_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
