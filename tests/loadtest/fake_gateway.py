"""A gateway on a real socket whose two backends keep the speeds given, and that misbehaves on request.

Each backend steps all its requests together: one token for each of them every `base_s + per_request_s * requests`. So
the load at which two backends cross follows from two straight lines. A backend may also obey an engine's model.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from engines.physics import EngineModel, Job, Replica
from tests.fakes.openai import DONE, LAST_CHUNK, Exchange, FakeOpenAI, chunk, sized

CHAT = "/v1/chat/completions"
# A JSON schema for each kind of policy, as far as the load tester reads it.
POLICIES = {
    kind: {"properties": {key: {"description": key} for key in keys}}
    for kind, keys in (
        ("share", ("low", "high", "share")),
        ("threshold", ("low", "high", "up", "down", "dwell_s")),
        ("curve", ("low", "high", "node", "fallback")),
    )
}


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
    prompt_tokens: int = 1


class PacedBackend:
    """Steps at absolute due times, so that a busy machine delays single steps and not the pace."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.running: list[Request] = []
        self.most_running = 0
        self.pause_at, self.pause_s = 0, 0.0  # a step, counted from 1, that takes this much longer
        self.neighbour: PacedBackend | None = None  # on the same GPUs: while it works, a step takes the sum of both
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
                if self.neighbour and self.neighbour.running:
                    due += self.neighbour.speed.base_s + self.neighbour.speed.per_request_s * len(
                        self.neighbour.running
                    )
                await asyncio.sleep(due - loop.time())
                for request in list(self.running):
                    self._step(request)
            self._arrived.clear()

    def _step(self, request: Request) -> None:
        request.sent += 1
        usage = (
            {"prompt_tokens": request.prompt_tokens, "completion_tokens": request.sent}
            if request.counts_events
            else None
        )
        if not request.writer.is_closing():
            request.writer.write(encode({"content": f" w{request.sent}"}, usage))
        if request.sent == request.tokens:
            self.running.remove(request)
            request.done.set()


class PhysicalBackend(PacedBackend):
    """Steps as its engine's model has it; while its neighbour works, by the neighbour's step longer."""

    def __init__(self, engine: EngineModel) -> None:
        super().__init__(Speed(0.0, 0.0))
        self.engine = engine
        self._replicas = {Replica(engine): asyncio.Event() for _ in range(engine.replicas)}
        self._jobs: dict[Request, Job] = {}

    @property
    def step_s(self) -> float:
        return max(replica.step_ms for replica in self._replicas) / 1e3

    def add(self, request: Request) -> None:
        super().add(request)
        job = self._jobs[request] = Job(0.0, request.prompt_tokens, request.tokens)
        replica = min(self._replicas, key=len)
        replica.add(job)
        self._replicas[replica].set()

    def drop(self, request: Request) -> None:
        super().drop(request)
        job = self._jobs.pop(request, None)
        if job is not None and job.replica is not None:
            job.replica.drop(job)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for replica in self._replicas:
                group.create_task(self._run(replica))

    async def _run(self, replica: Replica) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._replicas[replica].wait()
            due = loop.time()
            while step_ms := replica.begin():
                is_beside = isinstance(self.neighbour, PhysicalBackend) and self.neighbour.step_s > 0
                due += step_ms / 1e3 * (2 if is_beside else 1)
                await asyncio.sleep(due - loop.time())
                replica.end(due)
                for request, job in list(self._jobs.items()):
                    while request.sent < int(job.so_far):
                        self._step(request)
                    if request.done.is_set():
                        del self._jobs[request]
            self._replicas[replica].clear()


def crossing(low: Speed, high: Speed) -> float:
    """Requests in flight at which both take the same time per token."""
    return (high.base_s - low.base_s) / (low.per_request_s - high.per_request_s)


def encode(delta: dict[str, object], usage: dict[str, int] | None, finish: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}
    return chunk(b"data: " + json.dumps(body).encode() + b"\n\n")


def count_tokens(prompt: str) -> int:
    """A token for each word, and another for what is longer than six letters: equally many words differ in tokens."""
    return sum(1 + (len(word) > 6) for word in prompt.split())


def refuse(status: int, message: str) -> bytes:
    return sized(json.dumps({"error": {"message": message}}).encode(), status)


class FakeGateway(FakeOpenAI):
    """`async with FakeGateway(low, high) as gateway:` serves at `gateway.url` until the block is left."""

    def __init__(
        self,
        low: Speed | EngineModel,
        high: Speed | EngineModel,
        faults: Faults | None = None,
        continuous_usage: str = "refused",
    ) -> None:
        super().__init__()
        self.backends = {
            name: PhysicalBackend(pace) if isinstance(pace, EngineModel) else PacedBackend(pace)
            for name, pace in (("triton", low), ("vllm", high))
        }
        self.sizes: dict[str, dict[str, float]] = {"triton": {}, "vllm": {}}
        self.longest = 1_000_000  # tokens of a prompt that is not refused
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
        self._is_high = False
        self.switches = 0
        self._answers: Iterator[int] = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(backend.run()) for backend in self.backends.values()]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.stop()

    @property
    def in_flight(self) -> int:
        return sum(len(backend.running) for backend in self.backends.values())

    async def wait_until_left(self) -> None:
        """Until every client has closed its connections. Raises TimeoutError; nothing may be in flight then."""
        async with asyncio.timeout(10):
            while self.connections:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
        assert self.in_flight == 0

    async def _answer_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(await reader.readuntil(b"\r\n\r\n"), b"", reader, writer)
        length = exchange.field(b"content-length")
        exchange.body = await reader.readexactly(int(length[0]) if length else 0)
        method, path, _ = exchange.request_line.decode().split(" ")
        if path == CHAT:
            await self._answer_chat(exchange)
            return
        if path == "/metrics":
            writer.write(sized(b'crossover_moves_total{backend="vllm",model="toy"} 3.0\n', 200))
            return
        status, page = self._control(method, path.partition("?")[0], exchange.body)
        if method == "PUT":
            await asyncio.sleep(self.faults.slow_policy_s)
        writer.write(sized(json.dumps(page).encode(), status))

    def _control(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        match method, path:
            case "GET", "/version":
                return 200, {"version": "fake", "models": {"toy": self.engines}}
            case "GET", "/admin/state":
                backends: dict[str, object] = {
                    name: {"ready": self.is_ready[name], "size": self.sizes[name], **own.count()}
                    for name, own in self.backends.items()
                }
                side = "vllm" if self._is_high else "triton"
                model: dict[str, object] = {"model": "toy", "backends": backends, "policy": self.policy}
                model |= {"side": side, "switches": self.switches}
                return 200, {"models": [model], "policies": POLICIES}
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

    async def _answer_chat(self, exchange: Exchange) -> None:
        number, writer = next(self._answers), exchange.writer
        headers = {name.decode(): value.decode() for name, value in exchange.fields}
        body: dict[str, Any] = json.loads(exchange.body)  # Any: the client's own JSON
        name, prompt = headers.get("x-crossover-pin") or self._route(), str(body["messages"][0]["content"])
        if number == self.faults.replaced_engine:
            self.engines["vllm"]["version"] = "0.25.0"
        self.bodies.append(body)
        self.runs |= {headers["x-crossover-run"]} if "x-crossover-run" in headers else set()
        wants_counts = "continuous_usage_stats" in body["stream_options"]
        if wants_counts and self.continuous_usage == "refused":
            writer.write(refuse(400, "Unrecognized request argument: 'stream_options.continuous_usage_stats'."))
            return
        if count_tokens(prompt) > self.longest:
            writer.write(refuse(400, "the prompt is too long"))
            return
        self.prompts[name].append(prompt)
        if number == self.faults.error_answer:
            writer.write(refuse(503, "the engine is on fire"))
            return
        writer.write(f"HTTP/1.1 200 OK\r\nx-crossover-backend: {name}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        writer.write(encode({"role": "assistant", "content": ""}, usage=None))
        tokens = body["max_tokens"] - (number == self.faults.short_answer)
        request = Request(tokens, writer, wants_counts and self.continuous_usage == "counted")
        request.prompt_tokens = count_tokens(prompt)
        request.steers = not {"x-crossover-pin", "x-crossover-run"} <= headers.keys()
        self.backends[name].add(request)
        is_answered = await self._until_done(request, exchange.reader, name)
        # A client may leave as its last token comes.
        if not is_answered or writer.is_closing() or number == self.faults.cut_answer:
            raise ConnectionResetError
        self._finish(request, prompt, name)

    def _route(self) -> str:
        """Up at `up` in flight, back at `down`, as a threshold says; under any other policy all to the high backend."""
        before = self._is_high
        if self.policy["kind"] != "threshold" or self.in_flight >= int(str(self.policy["up"])):
            self._is_high = True
        elif self.in_flight <= int(str(self.policy["down"])):
            self._is_high = False
        self.switches += before != self._is_high
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
        prompt_tokens = count_tokens(prompt) + (self.faults.longer_prompts_on == name)
        usage: dict[str, object] = {"prompt_tokens": prompt_tokens, "completion_tokens": request.sent}
        if self.faults.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.faults.cached_tokens}
        last = json.dumps({"choices": [], "usage": usage}).encode()
        request.writer.write(encode({}, usage=None, finish="length") + chunk(b"data: " + last + b"\n\n"))
        request.writer.write(chunk(DONE) + LAST_CHUNK)
