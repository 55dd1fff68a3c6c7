"""Whose turn a request takes where clients share: a key's owner's, or an address's."""

import pytest

from gateway.access import Caller
from gateway.client_http import AsgiExchange, Intake
from gateway.serving.sender import Senders
from gateway.settings import LimitSettings

PROXIES = ("10.0.0.0/8", "::1/128")


def make(client: str, forwarded: str | None = None) -> AsgiExchange:
    fields = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": fields,
        "client": (client, 1),
    }  # fmt: skip
    return AsgiExchange(scope, None, None, Intake(LimitSettings()))  # type: ignore[arg-type]  # it calls none


@pytest.mark.parametrize(
    ("client", "forwarded", "name"),
    [
        ("192.0.2.7", None, "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # a client that pretends
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", "198.51.100.1"),  # of which the client wrote the first one
        ("10.0.0.1", "198.51.100.1, 10.1.2.3", "198.51.100.1"),  # two proxies
        ("10.0.0.1", "10.4.4.4", "10.4.4.4"),
        ("::1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "x" * 5000, "x" * 64),
        ("", "198.51.100.1", ""),
    ],
)
def test_an_address_is_that_which_trusted_proxies_name(client: str, forwarded: str | None, name: str) -> None:
    assert Senders(PROXIES).name(make(client, forwarded)) == name


def test_without_trusted_proxies_nothing_is_believed() -> None:
    assert Senders(()).name(make("10.0.0.1", "198.51.100.1")) == "10.0.0.1"


def test_a_key_is_its_owners_wherever_it_comes_from() -> None:
    exchange = make("10.0.0.1", "198.51.100.1")
    exchange.caller = Caller("alice", frozenset())
    assert Senders(PROXIES).name(exchange) == "key alice"
