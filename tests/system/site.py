"""A running stack as its users and operators see it: requests over HTTP, admin calls, and both engines' own metrics."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deploy.launch import Launched
from deploy.stacks import MODEL


@dataclass(slots=True)
class StreamedAnswer:
    """A streamed answer as far as its client has read it."""

    status: int = 0
    backend: str | None = None
    reason: str = ""
    text: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None
    error: dict[str, Any] | None = None  # Any: JSON
    is_done: bool = False
    began: asyncio.Event = field(default_factory=asyncio.Event)
    times: list[float] = field(default_factory=list)  # of the request, and of each piece of text; in the loop's seconds

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.is_done and self.error is None and self.finish_reason is not None


class Site:
    def __init__(self, stack: Launched, session: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.session = session
        self.url = stack.url

    def body(self, tokens: int, prompt: str = "Tell me a story.", **fields: object) -> dict[str, object]:
        """A streamed request that decodes exactly `tokens`."""
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }

    async def ask(
        self,
        tokens: int,
        answer: StreamedAnswer | None = None,
        pin: str | None = None,
        **fields: Any,  # Any: by name
    ) -> StreamedAnswer:
        """Stream one answer to its end."""
        answer = answer or StreamedAnswer()
        answer.times.append(asyncio.get_running_loop().time())
        headers = {} if pin is None else {"x-crossover-pin": pin}
        url = f"{self.url}/v1/chat/completions"
        async with self.session.post(url, json=self.body(tokens, **fields), headers=headers) as response:
            answer.status = response.status
            answer.backend = response.headers.get("x-crossover-backend")
            answer.reason = response.headers.get("x-crossover-reason", "")
            if response.status != 200:
                answer.error = (await response.json())["error"]
                return answer
            async for line in response.content:
                if line.startswith(b"data: "):
                    _read_event(answer, line[6:].strip())
        return answer

    async def ask_whole(self, tokens: int, **fields: Any) -> dict[str, Any]:  # Any: by name; JSON
        body = self.body(tokens, **fields, stream=False, stream_options=None)
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def state(self) -> dict[str, Any]:  # Any: JSON
        async with self.session.get(f"{self.url}/admin/state") as response:
            model: dict[str, Any] = (await response.json())["models"][0]
            return model

    async def set_policy(self, **changes: object) -> None:
        async with self.session.get(f"{self.url}/admin/policy") as response:
            policy = await response.json()
        wanted = {key: policy[key] for key in ("kind", "low", "high", "up", "down", "dwell_s")} | changes
        async with self.session.put(f"{self.url}/admin/policy", json=wanted) as response:
            assert response.status == 200, await response.text()

    async def drain(self, backend: str, *, is_draining: bool) -> None:
        url = f"{self.url}/admin/backends/{backend}"
        async with self.session.put(url, json={"draining": is_draining}) as response:
            assert response.status == 200, await response.text()

    async def count_moves(self) -> float:
        samples = await self._samples(f"{self.url}/metrics")
        return sum(sample.value for sample in samples if sample.name == "crossover_moves_total")

    @asynccontextmanager
    async def policy_put_back(self) -> AsyncIterator[None]:
        async with self.session.get(f"{self.url}/admin/policy") as response:
            policy = await response.json()
        try:
            yield
        finally:
            await self.set_policy(**{key: policy[key] for key in ("up", "down", "dwell_s")})

    async def in_flight(self) -> int:
        return sum(backend["in_flight"] for backend in (await self.state())["backends"].values())

    async def engine_requests(self) -> dict[str, float]:
        """Each engine's own count of the requests it holds: active, and running plus waiting."""
        backends = self.stack.stack.backends
        triton = await self._scrape(str(backends["triton"]["metrics_url"]))
        vllm = await self._scrape(f"{backends['vllm']['url']}/metrics")
        return {
            "triton": triton("nv_trt_llm_request_metrics", request_type="active"),
            "vllm": vllm("vllm:num_requests_running") + vllm("vllm:num_requests_waiting"),
        }

    async def _samples(self, url: str) -> list[Sample]:
        async with self.session.get(url) as response:
            text = await response.text()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    async def _scrape(self, url: str) -> Callable[..., float]:
        samples = await self._samples(url)

        def value(name: str, **labels: str) -> float:
            found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
            assert found, f"{url} has no {name} {labels}"
            return sum(found)

        return value


def _read_event(answer: StreamedAnswer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.is_done = True
        return
    event = orjson.loads(data)
    if "error" in event:
        answer.error = event["error"]
        return
    if usage := event.get("usage"):
        answer.completion_tokens = usage["completion_tokens"]
    for choice in event["choices"]:
        answer.text += choice["delta"].get("content") or ""
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        if choice["delta"].get("content"):
            answer.times.append(asyncio.get_running_loop().time())
            answer.began.set()


def pid_of(stack: Launched, name: str) -> int:
    """The process of that name itself, the last that was started, beneath the leash that started it."""
    return list(_descendants(leash_of(stack, name)))[-1]


def kill(stack: Launched, name: str, by: signal.Signals = signal.SIGKILL) -> None:
    """Kills the process of that name, and all that it has started, at once; SIGSTOP freezes them until SIGCONT."""
    for pid in list(_descendants(leash_of(stack, name))):
        with suppress(ProcessLookupError):  # it ended with the one before it
            os.kill(pid, by)


def leash_of(stack: Launched, name: str) -> int:
    return [child for child in stack.supervisor.children if child.process.name == name][-1]._popen.pid


def _descendants(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from _descendants(int(child))
            yield int(child)


async def becomes(what: Callable[[], Any], wanted: object, within_s: float) -> None:
    """Wait until an awaited value equals `wanted`; fail with the last value seen."""
    async with asyncio.timeout(within_s + 10):
        deadline = asyncio.get_running_loop().time() + within_s
        while (seen := await what()) != wanted:
            assert asyncio.get_running_loop().time() < deadline, f"{seen} is not {wanted} after {within_s} s"
            await asyncio.sleep(0.05)
