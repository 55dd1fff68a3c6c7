"""Which hosts are the gateway's own and which pages are not from elsewhere, as a table."""

import socket

import pytest

from gateway.access import OwnHosts
from gateway.errors import ForeignSite

HOSTS = OwnHosts("127.0.0.1", {"gw.example.com"})


def admits(hosts: OwnHosts, host: str, origin: str | None = None, pages: tuple[str, ...] = ()) -> bool:
    try:
        hosts.check(host.encode("latin-1"), None if origin is None else origin.encode("latin-1"), pages)
    except ForeignSite:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]:8080", "[::1]", "localhost", "LocalHost:8080",
        "localhost.", "demo.localhost:8080", "gw.example.com", "GW.example.com:443", socket.gethostname(), "",
    ],
)  # fmt: skip
def test_own_hosts(host: str) -> None:
    assert admits(HOSTS, host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "evil", "127.0.0.1.evil.example", "localhost.evil.example", "xlocalhost",
        "www.gw.example.com", "example.com", "gw.example.com.evil.example", "[::1", "127.0.0.1:x", "127.1",
        "0x7f000001", "\xff",
    ],
)  # fmt: skip
def test_foreign_hosts(host: str) -> None:
    assert not admits(HOSTS, host)
    assert admits(OwnHosts("127.0.0.1", {"*"}), host)


def test_the_name_in_listen_is_the_gateways() -> None:
    assert admits(OwnHosts("Node1.internal", ()), "node1.internal:8080")


@pytest.mark.parametrize(
    ("host", "origin", "is_own"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("localhost:80", "http://localhost", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("gw.example.com", "https://gw.example.com", True),
        ("127.0.0.1:8080", "https://gw.example.com", True),  # a proxy before it, by its own name for the gateway
        ("127.0.0.1:8080", "http://127.0.0.1:3000", False),  # another server of this machine
        ("127.0.0.1:8080", "http://localhost:8080", False),
        ("127.0.0.1:8080", "https://evil.example", False),
        ("127.0.0.1:8080", "https://evil.example?http://127.0.0.1:8080", False),
        ("127.0.0.1:8080", "null", False),
        ("127.0.0.1:8080", "", False),
        ("evil.example", "http://evil.example", False),  # rebinding
    ],
)
def test_pages(host: str, origin: str, *, is_own: bool) -> None:
    assert admits(HOSTS, host, origin) == is_own
    assert admits(HOSTS, "localhost", "https://chat.example", ("https://chat.example",))
    assert admits(HOSTS, "localhost", "https://chat.example", ("*",))
    assert not admits(HOSTS, "evil.example", "https://chat.example", ("*",))


def test_any_host_is_not_any_page() -> None:
    assert not admits(OwnHosts("0.0.0.0", {"*"}), "gw.example.com", "https://evil.example")
    # A page that resolves to this gateway names itself in both fields.
    assert not admits(OwnHosts("0.0.0.0", {"*"}), "evil.example:8080", "http://evil.example:8080")
    assert admits(OwnHosts("0.0.0.0", {"*", "gw.example.com"}), "gw.example.com", "https://gw.example.com")
    assert admits(OwnHosts("0.0.0.0", {"*"}), "localhost:8080", "http://localhost:8080")
