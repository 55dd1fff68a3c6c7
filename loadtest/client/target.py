"""The endpoint under test: a URL and a key in; connections, request bytes and fetched pages out.

Knows HTTP's request line and headers, and no endpoint's contents.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson

from loadtest.client.connection import Connection, ConnectionLost
from loadtest.client.errors import Unreachable

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint. `path`: the part of its URL before `/v1`."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    key: str | None = field(default=None, repr=False)
    _base: str = field(init=False, repr=False, default="")

    def __post_init__(self) -> None:
        lines = [f"host: {self.host}:{self.port}", "content-type: application/json"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        object.__setattr__(self, "_base", "\r\n".join(lines))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.path}"

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> "Target":
        """Parses http(s)://host[:port][/prefix][/v1]. Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url}")
        tls = parts.scheme == "https"
        return cls(
            parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/").removesuffix("/v1"), key
        )

    async def connect(self) -> Connection:
        """Opens a new connection. Raises Unreachable."""
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if self.tls else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(Connection, self.host, self.port, ssl=context)
        except (OSError, TimeoutError) as exc:
            raise Unreachable(f"cannot connect to {self}: {str(exc) or 'timed out'}") from exc
        return connection

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        extra = "".join(f"\r\n{name}: {value}" for name, value in (headers or {}).items())
        head = f"{method} {self.path}{path} HTTP/1.1\r\n{self._base}\r\ncontent-length: {len(body)}{extra}\r\n\r\n"
        return head.encode() + body

    async def fetch(self, method: str, path: str, body: object = None) -> object:
        """Fetches JSON from a control endpoint. Raises Unreachable, with the server's words, on anything else."""
        content = await self._fetch(method, path, b"" if body is None else orjson.dumps(body))
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as exc:
            raise Unreachable(f"{method} {self}{path}: the answer is not JSON") from exc

    async def fetch_text(self, method: str, path: str) -> str:
        """Fetches a page as text. Raises Unreachable, with the server's own words, on anything but a 200."""
        return (await self._fetch(method, path, b"")).decode(errors="replace")

    async def _fetch(self, method: str, path: str, body: bytes) -> bytes:
        page = _Page()
        connection = await self.connect()
        try:
            await connection.exchange(self.request(method, path, body), page)
            return page.read(f"{method} {self}{path}")
        except ConnectionLost as exc:
            raise Unreachable(f"{method} {self}{path}: {exc}") from exc
        finally:
            connection.abort()


@dataclass(slots=True)
class _Page:
    """A response that is read when it is complete."""

    status: int = 0
    content: bytes = b""

    def begin(self, at: float) -> None:
        pass

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status

    def body(self, data: bytes, at: float) -> None:
        self.content += data

    def end(self) -> None:
        pass

    def read(self, what: str) -> bytes:
        if self.status != 200:
            words = self.content[:300].decode(errors="replace")
            raise Unreachable(f"{what}: HTTP {self.status}: {words}")
        return self.content
