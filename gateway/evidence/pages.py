"""Control calls over HTTP, bounded in time and bytes. In: a URL. Out: the page, or that there is none."""

import asyncio
from typing import Any

import httpx
import orjson

from gateway.address import parse_target
from gateway.evidence.sockets import Transport, through
from gateway.json_limits import exceeds

TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 4 * 1024 * 1024  # vLLM's metrics are some 100 kB
MAX_PARTS = 50_000  # of JSON: a server lists each of its adapters, with some twenty


class Silent(Exception):
    """The engine did not tell: unreachable, too slow, or failing. Says nothing of what it would have said."""


class Pages:
    """One pool of connections for all engines."""

    def __init__(self) -> None:
        # Engines are neighbours: a proxy in the environment is not meant for them.
        self._client = httpx.AsyncClient(
            transport=Transport(), timeout=TIMEOUT_S, trust_env=False, headers={"accept-encoding": "identity"}
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def fetch(self, url: str, key: str | None = None) -> bytes | None:
        """None: the server has no such page for us. Raises Silent."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._read(url, headers)
        except (httpx.HTTPError, TimeoutError) as exc:
            raise Silent(f"{url}: {str(exc) or type(exc).__name__}") from exc

    async def fetch_json(self, url: str, key: str | None = None) -> dict[str, Any]:  # Any: another server's JSON
        """An object; empty if there is no such page or it holds something else. Raises Silent."""
        page = await self.fetch(url, key) or b"{}"
        if exceeds(page, MAX_PARTS, MAX_PARTS):
            return {}
        try:
            document = orjson.loads(page)
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}

    async def _read(self, url: str, headers: dict[str, str]) -> bytes | None:
        target = parse_target(url)
        async with self._client.stream("GET", target.url, headers=headers, extensions=through(target)) as response:
            if response.is_server_error:
                raise Silent(f"{url}: HTTP {response.status_code}")
            if not response.is_success:
                return None
            page = bytearray()
            async for piece in response.aiter_bytes():
                page += piece
                if len(page) > MAX_PAGE_BYTES:
                    raise Silent(f"{url}: more than {MAX_PAGE_BYTES} bytes")
            return bytes(page)
