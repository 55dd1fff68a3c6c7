"""A gateway on a real socket whose two backends keep the speeds given, and that misbehaves on request.

Each backend steps all its requests together: one token for each of them every `base_s + per_request_s * requests`. So
the load at which two backends cross follows from two straight lines.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

HEADERS_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Speed:
    base_s: float
    per_request_s: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, by number of the answer (counted from 1 over both backends); 0 never."""

    short_answer: int = 0
    error_answer: int = 0
    cut_answer: int = 0
    longer_prompts_on: str = ""
    policy_is_stuck: bool = False
    slow_policy_s: float = 0.0  # between taking a policy and confirming it
    replaced_engine: int = 0  # vllm reports another version from this answer on
    routes_to: str = ""  # whatever the policy says
    cached_tokens: int = 0  # reported of every prompt


@dataclass(slots=True, eq=False)
class Request:
    """One answer that is being generated. `steers`: whether the policy counts it."""

    tokens: int
    writer: asyncio.StreamWriter
    counts_events: bool = False
    steers: bool = True
    done: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0


class PacedBackend:
    """Steps at absolute due times, so that a busy machine delays single steps and not the pace."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.running: list[Request] = []
        self.most_running = 0
        self.pause_at, self.pause_s = 0, 0.0  # a step, counted from 1, that takes this much longer
        self._steps = 0
        self._arrived = asyncio.Event()

    def add(self, request: Request) -> None:
        self.running.append(request)
        self.most_running = max(self.most_running, len(self.running))
        self._arrived.set()

    def drop(self, request: Request) -> None:
        """Its client has left."""
        if request in self.running:
            self.running.remove(request)

    def count(self) -> dict[str, int]:
        return {"in_flight": len(self.running), "steering": sum(request.steers for request in self.running)}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            due = loop.time()
            while self.running:
                # A request that arrives while the step begins takes part in it: a closed loop then never loses a place
                # to the moment between an answer and the next request.
                self._steps += 1
                due += self.speed.base_s + self.pause_s * (self._steps == self.pause_at)
                await asyncio.sleep(due - loop.time())
                due += self.speed.per_request_s * len(self.running)
                await asyncio.sleep(due - loop.time())
                for request in list(self.running):
                    self._step(request)
            self._arrived.clear()

    def _step(self, request: Request) -> None:
        request.sent += 1
        usage = {"prompt_tokens": 1, "completion_tokens": request.sent} if request.counts_events else None
        if not request.writer.is_closing():
            request.writer.write(chunk({"content": f" w{request.sent}"}, usage))
        if request.sent == request.tokens:
            self.running.remove(request)
            request.done.set()


def crossing(low: Speed, high: Speed) -> float:
    """Requests in flight at which both take the same time per token."""
    return (high.base_s - low.base_s) / (low.per_request_s - high.per_request_s)


def chunk(delta: dict[str, object], usage: dict[str, int] | None, finish: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}
    return frame(b"data: " + json.dumps(body).encode() + b"\n\n")


def frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class FakeGateway:
    """`async with FakeGateway(low, high) as gateway:` serves at `gateway.url` until the block is left."""

    def __init__(
        self, low: Speed, high: Speed, faults: Faults | None = None, continuous_usage: str = "refused"
    ) -> None:
        self.backends = {"triton": PacedBackend(low), "vllm": PacedBackend(high)}
        self.faults = faults or Faults()
        self.continuous_usage = continuous_usage  # "refused", "ignored" or "counted"
        self.policy: dict[str, object] = {
            "model": "toy", "kind": "threshold", "low": "triton", "high": "vllm", "up": 48, "down": 40, "dwell_s": 1.0,
            "calibration": None, "by": "configuration", "version": 1,
        }  # fmt: skip
        self.is_ready = {"triton": True, "vllm": True}
        self.engines: dict[str, dict[str, object]] = {
            "triton": {"engine": "triton", "version": "2.71.0", "max_batch_size": 64},
            "vllm": {"engine": "vllm", "version": "0.24.0", "root": None},
        }
        self.prompts: dict[str, list[str]] = {"triton": [], "vllm": []}
        self.bodies: list[dict[str, object]] = []
        self.runs: set[str] = set()
        self.open_connections = 0
        self.empty = asyncio.Event()
        self._is_high = False
        self._answers: Iterator[int] = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=256)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(backend.run()) for backend in self.backends.values()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def in_flight(self) -> int:
        return sum(len(backend.running) for backend in self.backends.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self.empty.clear()
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._exchange(reader, writer)
        finally:
            self.open_connections -= 1
            if not self.open_connections:
                self.empty.set()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(HEADERS_END)).decode()
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = line.split(" ")
        if path == "/v1/chat/completions":
            await self._answer(headers, json.loads(body), reader, writer)
        else:
            status, page = self._control(method, path.partition("?")[0], body)
            if method == "PUT":
                await asyncio.sleep(self.faults.slow_policy_s)
            reply = json.dumps(page).encode()
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(reply)}\r\n\r\n".encode() + reply)

    def _control(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        match method, path:
            case "GET", "/version":
                return 200, {"version": "fake", "models": {"toy": self.engines}}
            case "GET", "/admin/state":
                backends = {
                    name: {"ready": self.is_ready[name], **backend.count()} for name, backend in self.backends.items()
                }
                model = {"model": "toy", "backends": backends, "policy": self.policy}
                return 200, {"version": "fake", "models": [model]}
            case "GET", "/v1/models":
                return 200, {"data": [{"id": "toy"}]}
            case "GET", "/admin/policy":
                return 200, self.policy
            case "PUT", "/admin/policy":
                if not self.faults.policy_is_stuck:
                    self.policy = json.loads(body) | {"version": 2}
                return 200, self.policy
            case _:
                return 404, {"error": {"message": f"no route {method} {path}"}}

    async def _answer(
        self,
        headers: dict[str, str],
        body: dict[str, object],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        number = next(self._answers)
        name = headers.get("x-crossover-pin") or self._route()
        prompt = str(body["messages"][0]["content"])  # type: ignore[index]  # the client's own JSON
        if number == self.faults.replaced_engine:
            self.engines["vllm"]["version"] = "0.25.0"
        self.bodies.append(body)
        if "x-crossover-run" in headers:
            self.runs.add(headers["x-crossover-run"])
        wants_counts = "continuous_usage_stats" in dict(body["stream_options"])  # type: ignore[call-overload]  # JSON
        if wants_counts and self.continuous_usage == "refused":
            _refuse(writer, 400, "Unrecognized request argument: 'stream_options.continuous_usage_stats'.")
            return
        self.prompts[name].append(prompt)
        if number == self.faults.error_answer:
            _refuse(writer, 503, "the engine is on fire")
            return
        writer.write(f"HTTP/1.1 200 OK\r\nx-crossover-backend: {name}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        writer.write(chunk({"role": "assistant", "content": ""}, usage=None))
        tokens = int(str(body["max_tokens"])) - (number == self.faults.short_answer)
        is_counted = wants_counts and self.continuous_usage == "counted"
        request = Request(tokens, writer, is_counted)
        request.steers = not {"x-crossover-pin", "x-crossover-run"} <= headers.keys()
        self.backends[name].add(request)
        is_answered = await self._until_done(request, reader, name)
        if not is_answered or writer.is_closing():  # a client may leave as its last token comes
            raise ConnectionResetError
        if number == self.faults.cut_answer:
            raise ConnectionResetError
        self._finish(request, prompt, name)

    def _route(self) -> str:
        """Up at `up` in flight, back at `down`, as the policy says."""
        if self.in_flight >= int(str(self.policy["up"])):
            self._is_high = True
        elif self.in_flight <= int(str(self.policy["down"])):
            self._is_high = False
        return self.faults.routes_to or ("vllm" if self._is_high else "triton")

    async def _until_done(self, request: Request, reader: asyncio.StreamReader, name: str) -> bool:
        """Whether it was answered to the end; False if the client left."""
        loop = asyncio.get_running_loop()
        leaving, ending = loop.create_task(reader.read(1)), loop.create_task(request.done.wait())
        try:
            await asyncio.wait({leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
            return request.done.is_set()
        finally:
            leaving.cancel()
            ending.cancel()
            await asyncio.gather(leaving, ending, return_exceptions=True)
            self.backends[name].drop(request)

    def _finish(self, request: Request, prompt: str, name: str) -> None:
        prompt_tokens = len(prompt.split()) + (self.faults.longer_prompts_on == name)
        usage: dict[str, object] = {"prompt_tokens": prompt_tokens, "completion_tokens": request.sent}
        if self.faults.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.faults.cached_tokens}
        request.writer.write(chunk({}, usage=None, finish="length"))
        last = json.dumps({"choices": [], "usage": usage}).encode()
        request.writer.write(frame(b"data: " + last + b"\n\n"))
        request.writer.write(frame(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _refuse(writer: asyncio.StreamWriter, status: int, message: str) -> None:
    reply = json.dumps({"error": {"message": message}}).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(reply)}\r\n\r\n".encode() + reply)
