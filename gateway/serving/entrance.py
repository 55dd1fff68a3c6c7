"""What is decided by a request's head alone: whether it may come in, by its key, or without keys by host and page.

In: an exchange whose head is there. Out: the error. Knows no body.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from gateway.access import Access, Scope
from gateway.client_http import Exchange, RequestHead
from gateway.errors import GatewayError


class Entrance:
    """`pages`: the origins whose pages may call, "*" for all. `constant_answers`: for everyone, see Handler."""

    def __init__(
        self,
        access: Access,
        pages: Collection[str],
        constant_answers: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> None:
        self.constant_answers = constant_answers
        self.access = access
        self._keyring = access.keyring
        self._hosts = access.hosts
        self._pages = pages

    def check_head(self, exchange: Exchange) -> GatewayError | None:
        """Returns why the request is refused; notes its caller where there are keys for inference."""
        head = exchange.head
        try:
            if self._keyring.guards_inference:  # no page has a key of its own
                exchange.caller = self._keyring.require(head.credentials, Scope.INFERENCE)
            else:
                self._hosts.check(head.host, head.origin, self._pages)
            if head.has_own and self._keyring.guards_operator:
                self._check_own(exchange, head)
        except GatewayError as error:
            return error
        return None

    def _check_own(self, exchange: Exchange, head: RequestHead) -> None:
        """Lets load tests alone pin and tag. With the configuration's operator key alone everyone may tag."""
        if self._keyring.has_keys or head.field(b"x-crossover-pin") is not None:
            exchange.caller = self._keyring.require(head.credentials, Scope.LOADTEST)
