"""Writes and sends one request. In: the work. Out: the answer as it was streamed.

Uses the ordinary chat endpoint, with the gateway's pin header where a backend is named and its run header where a run
is. The fields that fix an answer's length are vLLM's.
"""

import asyncio
from dataclasses import dataclass

import orjson

from loadtest.client.connection import Connection, ConnectionLost
from loadtest.client.errors import Untrusted
from loadtest.client.prompts import Work, write_prompt
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.target import Target

ANSWER_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Sender:
    """What all requests share. `run`: their tag; empty for none. `wants_counts`: ask for usage with every event, where
    it is offered. `is_exact`: ask for exactly the work's number of tokens, by vLLM's fields; else for at most that.
    """

    target: Target
    model: str
    run: str
    seed: int
    prompt_words: int
    wants_counts: bool = False
    is_exact: bool = True

    async def connect(self) -> Connection:
        return await self.target.connect()

    async def send(self, connection: Connection, work: Work, answer: StreamedAnswer) -> None:
        """Fills `answer`. Raises Untrusted if the connection closes or the time is up before the answer ends."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await connection.exchange(self._encode(work), answer)
        except ConnectionLost as exc:
            raise Untrusted(f"REQUEST FAILED: the connection for {work.server} was lost: {exc}") from exc
        except TimeoutError as exc:
            raise Untrusted(f"REQUEST FAILED: {work.server} gave no answer in {ANSWER_TIMEOUT_S:.0f} s") from exc

    def _encode(self, work: Work) -> bytes:
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if self.wants_counts else {})
        words = self.prompt_words if work.words is None else work.words
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": write_prompt(self.seed, work.prompt, words, work.lead)}],
            "max_tokens": work.tokens,
            **({"min_tokens": work.tokens, "ignore_eos": True} if self.is_exact else {}),
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        headers = {"x-crossover-pin": work.backend} if work.backend else {}
        headers |= {"x-crossover-run": self.run} if self.run else {}
        return self.target.request("POST", "/v1/chat/completions", orjson.dumps(body), headers)
