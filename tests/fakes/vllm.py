"""A scripted vLLM on a real socket: /health, both token routes, SSE in HTTP chunks, and vLLM's own forms of errors."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httptools
import orjson

from tests.fakes.script import Asked, EndToken, FakeEngine, Fault, Full, Hush, Pause, Say, Stall, Step, StopWord

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

FAULTS = {
    "busy": (503, "Service Unavailable", "The server is overloaded, try again later"),
    "too long": (400, "BadRequestError", "This model's maximum context length is 2048 tokens. However, your prompt"),
    "bad guide": (400, "BadRequestError", "Grammar error: unterminated character class"),
    "broken": (500, "InternalServerError", "Internal server error"),
}


SCORES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def made_up_score(token_id: int, count: int) -> tuple[float, dict[str, float]]:
    """A token's log-probability and `count` others', the second more probable; the token itself stands first."""
    own = -0.5 - token_id % 7
    others = {f"token_id:{token_id + n}": own + 0.25 * (2 if n == 2 else -n) for n in range(1, count + 1)}
    return own, {f"token_id:{token_id}": own} | others


def scored(token_ids: Sequence[int], count: int, unscored: int = 0) -> dict[str, Any]:
    """A choice's `logprobs` as in /v1/completions; the first `unscored` tokens have none."""
    lists: dict[str, Any] = {name: [] for name in SCORES}
    for place, token_id in enumerate(token_ids):
        own, top = made_up_score(token_id, count)
        lists["tokens"].append(f"token_id:{token_id}")
        lists["token_logprobs"].append(own if place >= unscored else None)
        lists["top_logprobs"].append(top if place >= unscored else None)
        lists["text_offset"].append(place)
    return lists


def error_body(code: int, kind: str, message: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


class FakeVLLM(FakeEngine):
    """`has_generate` off answers 403 there; `returns_ids` off ignores return_token_ids, as old releases do.

    `late_errors` sends an error that comes first as an event after a 200, as --max-num-queued-reqs does. `cached`: how
    many tokens of each prompt its cache holds, as --enable-prompt-tokens-details shows it; None: it does not.
    `api_key`: what every request has to bring, as with --api-key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_generate = True
        self.returns_ids = True
        self.late_errors = False
        self.cached: int | None = None
        self.is_healthy = True
        self.api_key: str | None = None
        self.paths: list[str] = []
        self.connections: set[_Connection] = set()

    @asynccontextmanager
    async def serving(self, listener: socket.socket | None = None) -> AsyncIterator["FakeVLLM"]:
        """On `listener`, which may be of another network namespace; else on any free port of this one."""
        listener = listener or socket.create_server(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), sock=listener)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for connection in tuple(self.connections):
                connection.abort()
            await server.wait_closed()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: FakeVLLM) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._bearer = b""
        self._transport: asyncio.Transport
        self._playing: asyncio.Task[None] | None = None

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._engine.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        if self._playing is not None and not self._playing.done():
            self._engine.left += 1
            self._playing.cancel()

    def on_url(self, url: bytes) -> None:
        self._url, self._body, self._bearer = url, b"", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"authorization":
            self._bearer = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.decode()
        self._engine.paths.append(path)
        if path == "/health" and not self._engine.answers_probes:
            return
        if (key := self._engine.api_key) is not None and self._bearer != f"Bearer {key}".encode():
            self._answer(401, b'{"error":"Unauthorized"}')
        elif path == "/health":
            self._answer(200 if self._engine.is_healthy else 503, b"")
        elif path == GENERATE and not self._engine.has_generate:
            self._answer(403, error_body(403, "PermissionDeniedError", "Scale-out endpoints are disabled"))
        elif path in {GENERATE, COMPLETIONS}:
            self._begin(path, orjson.loads(self._body))
        else:
            self._answer(404, b'{"detail":"Not Found"}')

    def _begin(self, path: str, body: dict[str, Any]) -> None:  # Any: decoded JSON
        prompt = body.get("token_ids" if path == GENERATE else "prompt")
        if not prompt:
            self._answer(400, error_body(400, "Bad Request", "token_ids: Field required"))
            return
        stop_ids = (body["sampling_params"] if path == GENERATE else body)["stop_token_ids"]
        asked = Asked(tuple(prompt), stop_ids[0] if stop_ids else None, body)
        self._engine.asked.append(asked)
        self._playing = asyncio.get_running_loop().create_task(self._play(asked, self._engine.script(asked)))

    async def _play(self, asked: Asked, steps: Sequence[Step]) -> None:
        self._engine.running += 1
        try:
            if not self._refuses(steps):
                await self._stream(asked, steps)
        finally:
            self._engine.running -= 1

    def _refuses(self, steps: Sequence[Step]) -> bool:
        if not isinstance(steps[0], Fault) or self._engine.late_errors:
            return False
        self._answer(FAULTS[steps[0].kind][0], error_body(*FAULTS[steps[0].kind]))
        return True

    async def _stream(self, asked: Asked, steps: Sequence[Step]) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        async for event in self._events(asked, steps):
            self._chunk(b"data: " + event + b"\n\n")
        self._chunk(b"")

    async def _events(self, asked: Asked, steps: Sequence[Step]) -> AsyncIterator[bytes]:
        end_ids = () if asked.end_id is None else (asked.end_id,)
        echo = asked.prompt if asked.raw.get("echo") else ()
        for step, following in zip(steps, (*steps[1:], None), strict=True):
            match step:
                case Pause() | Stall():
                    await step.wait()
                case Say(token_ids):  # what ends an answer comes with the last ids, never alone
                    reason = {Full: "length", StopWord: "stop"}.get(type(following))
                    yield self._event(asked, token_ids, reason, echo)
                    echo = ()
                case EndToken():
                    yield self._event(asked, end_ids, "stop", echo)
                case Fault(kind):
                    yield error_body(*FAULTS[kind])
                case Hush():
                    return
        if asked.raw.get("stream_options") == {"include_usage": True}:
            yield self._usage(asked)
        yield b"[DONE]"

    def _usage(self, asked: Asked) -> bytes:
        usage: dict[str, object] = {"prompt_tokens": len(asked.prompt)}
        if self._engine.cached:  # vLLM leaves it out for 0
            usage["prompt_tokens_details"] = {"cached_tokens": self._engine.cached}
        return orjson.dumps({"request_id": "generate-tokens-1", "usage": usage, "choices": []})

    def _event(
        self, asked: Asked, token_ids: Sequence[int], finish_reason: str | None, echo: Sequence[int] = ()
    ) -> bytes:
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        if (count := asked.raw.get("logprobs")) is not None:
            assert isinstance(count, int)
            choice["logprobs"] = scored((*echo, *token_ids), count, unscored=min(len(echo), 1))
        if self._engine.returns_ids:
            choice["token_ids"] = token_ids
        else:
            choice["text"] = "some text"
        return orjson.dumps({"request_id": "generate-tokens-1", "choices": [choice]})

    def _chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)
