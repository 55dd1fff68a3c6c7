"""Who a request counts for where clients share something: the owner of its key, else the address that it came from.

In: an exchange, and the addresses of proxies that are trusted to name the address before them. Out: a name.
"""

from collections.abc import Collection
from ipaddress import ip_address, ip_network

from gateway.client_http import Exchange

FORWARDED_FOR = b"x-forwarded-for"
MOST_HOPS = 16  # proxies that are asked, the last one first
LONGEST = 64  # characters of an address


class Senders:
    """`proxies`: addresses, or networks."""

    def __init__(self, proxies: Collection[str]) -> None:
        self._proxies = [ip_network(each) for each in proxies]

    def name(self, exchange: Exchange) -> str:
        """Returns the name. What a client itself writes into x-forwarded-for counts for nothing."""
        if exchange.caller is not None:
            return f"key {exchange.caller.name}"
        address = exchange.client
        if not self._proxies:
            return address
        for before in reversed((exchange.head.field(FORWARDED_FOR) or "").split(",")[-MOST_HOPS:]):
            if not self._is_proxy(address):
                break
            address = before.strip()[:LONGEST] or address
        return address

    def _is_proxy(self, address: str) -> bool:
        try:
            known = ip_address(address)
        except ValueError:
            return False
        return any(known in network for network in self._proxies)
