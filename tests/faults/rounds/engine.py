"""`python -m tests.faults.rounds.engine PORT`: the fake vLLM, as fast as it is, in a process of its own.

In: a port. Out: four tokens for each request; for a large `max_tokens` that many at once, and more for half a minute.
"""

import asyncio
import socket
import sys
from collections.abc import Sequence

import uvloop

from tests.fakes.script import Asked, EndToken, Pause, Say, Step
from tests.fakes.vllm import FakeVLLM

SHORT = 4  # tokens


def answer(asked: Asked) -> Sequence[Step]:
    tokens = int(str(asked.raw["max_tokens"]))
    if tokens <= SHORT:
        return (*[Say((1,))] * tokens, EndToken())
    pieces: list[Step] = [Pause(0.5), Say((1,) * 4000)]  # 8 kB twice a second
    return (Say((1,) * tokens), *pieces * 60, EndToken())


async def serve(port: int) -> None:
    engine = FakeVLLM()
    engine.script = answer
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    async with engine.serving(listener):
        while True:
            await asyncio.sleep(1.0)
            engine.asked.clear()
            engine.paths.clear()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
