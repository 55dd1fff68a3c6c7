"""One HTTP question to a server that may be anything. In: a URL. Out: its answer, or that it gave none."""

import asyncio
from enum import Enum
from typing import Any, NamedTuple

import httpx
import orjson

from gateway.address import parse_target
from gateway.evidence import Transport, through

TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 2.0


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def document(self) -> dict[str, Any]:  # Any: another server's JSON
        """The body, if it is a JSON object; else an empty one."""
        try:
            document = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


class Silence(Enum):
    """Why there is no answer, in words for what is at the address."""

    NOBODY = "nobody who accepts connections"
    MUTE = "a server that accepts connections and does not answer"
    FOREIGN = "a server that speaks no HTTP"


class NoAnswer(Exception):
    """Nothing answered by HTTP in time."""

    def __init__(self, reason: str, silence: Silence) -> None:
        super().__init__(reason)
        self.silence = silence


class Http:
    """One pool of connections for all questions."""

    def __init__(self) -> None:
        # Engines are neighbours: a proxy in the environment is not meant for them.
        self._client = httpx.AsyncClient(transport=Transport(), trust_env=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def get(self, url: str, key: str | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
        """Raises NoAnswer."""
        return await self._ask("GET", url, timeout_s, headers=_authorize(key))

    async def post(self, url: str, document: object) -> Answer:
        """Raises NoAnswer."""
        return await self._ask("POST", url, TIMEOUT_S, json=document)

    async def _ask(self, method: str, url: str, timeout_s: float, **content: Any) -> Answer:  # Any: httpx's own
        target, patience = parse_target(url), httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        request = self._client.build_request(
            method, target.url, timeout=patience, extensions=through(target), **content
        )
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + timeout_s):
                response = await self._client.send(request)
        except (httpx.HTTPError, TimeoutError) as exc:
            raise NoAnswer(str(exc) or type(exc).__name__, _explain(exc)) from exc
        return Answer(response.status_code, response.content)


def _explain(error: httpx.HTTPError | TimeoutError) -> Silence:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return Silence.NOBODY
        case httpx.TimeoutException() | TimeoutError():
            return Silence.MUTE
        case _:
            return Silence.FOREIGN


def _authorize(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def recognise(http: Http, url: str) -> str | None:
    """What is at `url`, which has no path, in words; None if nobody is. What speaks no HTTP is not asked further."""
    for path, kind in SIGNS:
        try:
            answer = await http.get(f"{url}{path}")
        except NoAnswer as exc:
            return None if exc.silence is Silence.NOBODY else exc.silence.value
        if answer.status == 200 and kind.sign in answer.body:
            return kind.words
    return "an HTTP server of another kind"


class Sign(NamedTuple):
    sign: bytes  # stands in its answer
    words: str


SIGNS = (
    ("/version", Sign(b'"is_compiled"', "a Crossover gateway")),
    ("/version", Sign(b'"version"', "a server with OpenAI's API")),
    ("/v2", Sign(b'"triton"', "Triton's HTTP port")),
    ("/metrics", Sign(b"nv_inference_request_success", "Triton's metrics port")),
    ("/v1/models", Sign(b'"data"', "a server with OpenAI's API")),
)
