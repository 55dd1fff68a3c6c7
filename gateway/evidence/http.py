"""HTTP calls to servers that may be anything, bounded in time and bytes. In: a URL. Out: an Answer, or NoAnswer."""

import asyncio
from enum import Enum
from typing import Any, NamedTuple

import httpx
import orjson

from gateway.address import parse_target
from gateway.json_limits import exceeds

TIMEOUT_S = 2.0  # of a whole call
CONNECT_TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 4 * 1024 * 1024  # vLLM's metrics are some 100 kB
MAX_PARTS = 50_000  # of JSON: a server lists each of its adapters, with some twenty
SOCKET = "socket"  # of a request's extensions


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def document(self) -> dict[str, Any]:  # Any: another server's JSON
        """The body, if it is a JSON object; else an empty one."""
        try:
            document = {} if exceeds(self.body, MAX_PARTS, MAX_PARTS) else orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


class Silence(Enum):
    """Why there is no answer, as a description of what is at the address."""

    NOBODY = "nobody who accepts connections"
    MUTE = "a server that accepts connections and does not answer"
    FOREIGN = "a server that speaks no HTTP"


class NoAnswer(Exception):
    """Nothing was learnt: the server cannot be reached, is too slow or fails."""

    def __init__(self, reason: str, silence: Silence = Silence.MUTE) -> None:
        super().__init__(reason)
        self.silence = silence


class Http:
    """One pool of connections for all calls, by TCP or through sockets in the file system."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        # Engines are neighbours: a proxy in the environment is not meant for them.
        self._client = httpx.AsyncClient(
            transport=_Transport(), trust_env=False, headers={"accept-encoding": "identity"}
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def get(self, url: str, key: str | None = None, timeout_s: float | None = None) -> Answer:
        """Sends a GET, with `key` as a bearer token. Raises NoAnswer."""
        return await self._call("GET", url, timeout_s or self._timeout_s, headers=_bear(key))

    async def post(self, url: str, document: object, key: str | None = None) -> Answer:
        """Sends a POST with `document` as JSON and `key` as a bearer token. Raises NoAnswer."""
        return await self._call("POST", url, self._timeout_s, headers=_bear(key), json=document)

    async def fetch(self, url: str, key: str | None = None) -> Answer | None:
        """Returns a page of an engine, None if the server refuses it or has none. Raises NoAnswer, for a 5xx too."""
        answer = await self.get(url, key)
        if answer.status >= 500:
            raise NoAnswer(f"{url}: HTTP {answer.status}")
        return answer if 200 <= answer.status < 300 else None

    async def _call(self, method: str, url: str, timeout_s: float, **content: Any) -> Answer:  # Any: httpx's own
        target, patience = parse_target(url), httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        options = {"timeout": patience, "extensions": {SOCKET: target.socket_path}, **content}
        try:
            async with asyncio.timeout(timeout_s), self._client.stream(method, target.url, **options) as response:
                return Answer(response.status_code, await _read(url, response))
        except (httpx.HTTPError, TimeoutError) as exc:
            raise NoAnswer(f"{url}: {str(exc) or type(exc).__name__}", _explain(exc)) from exc


async def _read(url: str, response: httpx.Response) -> bytes:
    page = bytearray()
    async for piece in response.aiter_bytes():
        page += piece
        if len(page) > MAX_PAGE_BYTES:
            raise NoAnswer(f"{url}: more than {MAX_PAGE_BYTES} bytes")
    return bytes(page)


def _bear(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _explain(error: httpx.HTTPError | TimeoutError) -> Silence:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Silence.NOBODY
        case httpx.TimeoutException() | TimeoutError():
            return Silence.MUTE
        case _:
            return Silence.FOREIGN


class _Transport(httpx.AsyncBaseTransport):
    """One pool of connections for TCP and one for each socket, which a request names in its extensions."""

    def __init__(self) -> None:
        self._by_socket: dict[str | None, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._find(request.extensions.get(SOCKET)).handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._by_socket.values():
            await transport.aclose()

    def _find(self, socket: str | None) -> httpx.AsyncHTTPTransport:
        if socket not in self._by_socket:  # certificates take 30 ms to load, for nothing on a socket
            self._by_socket[socket] = httpx.AsyncHTTPTransport(verify=socket is None, uds=socket)
        return self._by_socket[socket]
