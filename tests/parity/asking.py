"""Asks a server for a case's answer: the gateway, pinned or not, or vLLM itself.

In: a Case. Out: an Answer. Knows HTTP; not what is expected.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

import aiohttp

from tests.parity.answers import Answer, fold, read_events
from tests.parity.case import Case
from tests.parity.compare import find_paths
from tests.parity.form import find_breaches

TRITON, VLLM = "triton", "vllm"


Both: TypeAlias = tuple[Answer, Answer]  # whole, and streamed
Heard: TypeAlias = dict[tuple[str, str | None, str], Both]


@dataclass(frozen=True, slots=True)
class Asker:
    """`url`: of a server that speaks OpenAI's API, without /v1. `pin`: the backend that must answer.

    `heard`: answers by whom they were asked of and by case; what is there is not asked again. An engine's failure (5xx)
    is not kept.
    """

    session: aiohttp.ClientSession
    url: str
    pin: str | None = None
    heard: Heard = field(default_factory=dict)

    async def ask(self, case: Case, *, stream: bool) -> Answer:
        headers = {} if self.pin is None else {"x-crossover-pin": self.pin}
        url, body = self.url + case.path, case.request(stream=stream)
        async with self.session.post(url, json=body, headers=headers) as response:
            backend = response.headers.get("x-crossover-backend")
            reason = response.headers.get("x-crossover-reason", "")
            if response.content_type != "text/event-stream":
                return Answer(response.status, backend, reason, await response.json())
            events, breaches = read_events(await response.text())
        if errors := [event for event in events if "error" in event]:
            return Answer(response.status, backend, reason, errors[0], breaches=("ends in an error",))
        return Answer(
            response.status,
            backend,
            reason,
            fold(events, is_chat=case.is_chat),
            frozenset(find_paths(events)),
            (*breaches, *find_breaches(events, is_chat=case.is_chat)),
        )

    async def ask_both_ways(self, case: Case) -> Both:
        key = (self.url, self.pin, case.name)
        if key not in self.heard:
            whole, streamed = await asyncio.gather(self.ask(case, stream=False), self.ask(case, stream=True))
            if max(whole.status, streamed.status) >= 500 or "ends in an error" in streamed.breaches:
                return whole, streamed
            self.heard[key] = whole, streamed
        return self.heard[key]
