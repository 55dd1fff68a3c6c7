"""Who may call the operator's routes, by host, page and key, decided by a request's head with the body unread.

In: an ASGI app. Out: the same, answering 401 and 403. The probes of load balancers and orchestrators always pass.
"""

import asyncio
import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import Access, Caller, Keyring
from gateway.access import Scope as KeyScope
from gateway.errors import GatewayError
from gateway.header import digest_keys, find_keys
from gateway.operator.errors import make_answer

CALLER = "crossover.caller"  # in a request's scope: whose key it came with; None where none was needed
KEYRING = "crossover.keyring"
REPORT_S = 1.0  # between two lines about refused attempts
PROBES = frozenset({"/health", "/ready"})
METRICS = "/metrics"
# An operator key in the configuration, alone, leaves these to everyone, as it did before there were other keys.
PAGES = frozenset({METRICS, "/openapi.json", "/version"})


audit = logging.getLogger("gateway.audit")


class OperatorEntrance:
    """ASGI middleware. Notes the caller, for `name_caller`, and reports those that it refuses."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._refused = 0  # since the last report
        self._last = ""
        self._is_waiting = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        try:
            caller = self._check(scope["path"], dict(scope["headers"]))
        except GatewayError as error:
            self._note_refusal(scope, error)
            await make_answer(error)(scope, receive, send)
        else:
            await self._app({**scope, CALLER: caller, KEYRING: self._access.keyring}, receive, send)

    def _note_refusal(self, scope: Scope, error: GatewayError) -> None:
        self._refused += 1
        self._last = f"{scope['method']} {scope['path'][:100]!r} from {(scope.get('client') or ['unknown'])[0]}"
        self._last += f" ({error.code})"
        if not self._is_waiting:
            self._report()

    def _report(self) -> None:
        self._is_waiting = self._refused > 0
        if self._is_waiting:
            audit.warning("%d operator requests refused, the last one %s", self._refused, self._last)
            self._refused = 0
            asyncio.get_running_loop().call_later(REPORT_S, self._report)

    def _check(self, path: str, fields: dict[bytes, bytes]) -> Caller | None:
        """Returns who calls. Raises ForeignSite, Unauthorized, PermissionDenied."""
        access, keyring = self._access, self._access.keyring
        access.hosts.check(fields.get(b"host", b""), fields.get(b"origin"))
        is_open = path == METRICS and access.open_metrics
        if is_open or not (keyring.has_keys if path in PAGES else keyring.guards_operator):
            return None
        return keyring.require(digest_keys(fields), KeyScope.OPERATOR)


def find_key(request: Request) -> str | None:
    """Returns the key with which the caller was let in, for a process that calls this gateway in the caller's name."""
    keyring: Keyring = request.scope[KEYRING]
    fields = dict(request.scope["headers"])
    for key, digest in zip(find_keys(fields), digest_keys(fields), strict=True):
        if (caller := keyring.find((digest,))) is not None and caller == request.scope[CALLER]:
            return key.decode("latin-1")
    return None


def name_caller(request: Request) -> str:
    """Describes who makes a change: by the name of the key, where one was needed, and by address."""
    address = request.client.host if request.client else "unknown"
    caller: Caller | None = request.scope[CALLER]
    return address if caller is None else f"key {caller.name} from {address}"
