"""Asks a server for a case's answer: the gateway, pinned or not, or vLLM itself.

In: a Case. Out: an Answer. Of the gateway's answers the form is checked here, as for generated requests.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TypeAlias

import aiohttp
import orjson

from tests.fuzz.exchange import Received, Sent, check
from tests.openai.streams import fold, read_events
from tests.parity.answers import Answer
from tests.parity.case import Case
from tests.parity.compare import find_paths

TRITON, VLLM = "triton", "vllm"


Both: TypeAlias = tuple[Answer, Answer]  # whole, and streamed
Known: TypeAlias = dict[tuple[str, str | None, str], Both]


@dataclass(frozen=True, slots=True)
class Asker:
    """`url`: of a server that speaks OpenAI's API, without /v1. `pin`: the backend that must answer.

    `known`: answers by server, pin and case, so that none is asked for twice. An engine's failure (5xx) is not kept.
    """

    session: aiohttp.ClientSession
    url: str
    pin: str | None = None
    known: Known = field(default_factory=dict)
    is_gateway: bool = True

    async def ask(self, case: Case, *, stream: bool) -> Answer:
        """Raises AssertionError for an answer of the gateway that is not of a declared form."""
        headers = {"content-type": "application/json"} | ({} if self.pin is None else {"x-crossover-pin": self.pin})
        body = orjson.dumps(case.request(stream=stream))
        async with self.session.post(self.url + case.path, data=body, headers=headers) as response:
            raw = await response.read()
        fields = {name.lower(): value for name, value in response.headers.items()}
        if self.is_gateway:
            check(Sent("POST", case.path, body), Received(response.status, fields, raw))
        backend, reason = fields.get("x-crossover-backend"), fields.get("x-crossover-reason", "")
        if response.content_type != "text/event-stream":
            return Answer(response.status, backend, reason, orjson.loads(raw))
        events = read_events(raw)
        if "error" in events[-1]:
            return Answer(response.status, backend, reason, events[-1])
        document = fold(events, is_chat=case.is_chat)
        return Answer(response.status, backend, reason, document, frozenset(find_paths(events)))

    async def ask_both_ways(self, case: Case) -> Both:
        key = (self.url, self.pin, case.name)
        if key not in self.known:
            whole, streamed = await asyncio.gather(self.ask(case, stream=False), self.ask(case, stream=True))
            if max(whole.status, streamed.status) >= 500:
                return whole, streamed
            self.known[key] = whole, streamed
        return self.known[key]
