"""How a request is worded and sent: the work asked for in, the answer as it came out.

The ordinary chat endpoint, with the gateway's pin and run headers where a backend is named; the fields that fix an
answer's length are vLLM's.
"""

import asyncio
from dataclasses import dataclass

import orjson

from loadtest.answer import Answer
from loadtest.connection import Connection, ConnectionLost
from loadtest.errors import RequestFailed
from loadtest.target import Target
from loadtest.work import Asked, write_prompt

ANSWER_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Sender:
    """`counted`: ask for usage with every event, where the endpoint offers it. `is_exact`: answers of as many tokens as
    asked for and no fewer, by vLLM's fields; without it, at most so many.
    """

    target: Target
    model: str
    run: str
    seed: int
    prompt_words: int
    counted: bool = False
    is_exact: bool = True

    async def connect(self) -> Connection:
        return await self.target.connect()

    async def send(self, connection: Connection, asked: Asked, answer: Answer) -> None:
        """Fill `answer`. Raises RequestFailed when the connection ends before it does."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await connection.exchange(self._word(asked), answer)
        except ConnectionLost as exc:
            raise RequestFailed(f"REQUEST FAILED: the connection for {asked.server} was lost: {exc}") from exc
        except TimeoutError as exc:
            raise RequestFailed(f"REQUEST FAILED: {asked.server} gave no answer in {ANSWER_TIMEOUT_S:.0f} s") from exc

    def _word(self, asked: Asked) -> bytes:
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if self.counted else {})
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": write_prompt(self.seed, asked.place, self.prompt_words)}],
            "max_tokens": asked.tokens,
            **({"min_tokens": asked.tokens, "ignore_eos": True} if self.is_exact else {}),
            "temperature": 0,
            "stream": True,
            "stream_options": options,
        }
        headers = {"x-crossover-pin": asked.backend} if asked.backend else {}
        headers |= {"x-crossover-run": self.run} if self.run else {}
        return self.target.request("POST", "/v1/chat/completions", orjson.dumps(body), headers)
