"""One request that is not measured: whether it is answered as asked, and whether every event can carry its usage."""

from dataclasses import replace

from loadtest.answer import Answer
from loadtest.judge import Judge
from loadtest.sender import Sender
from loadtest.work import Asked


async def probe(sender: Sender, judge: Judge, asked: Asked) -> tuple[Sender, Answer]:
    """The sender to go on with. Raises CalibrationError if the answer is not the work asked for."""
    answer = Answer()
    connection = await sender.connect()
    try:
        await sender.send(connection, asked, answer)
    finally:
        connection.abort()
    # continuous_usage_stats is vLLM's extension; an endpoint may refuse it or know nothing of it.
    if sender.counted and answer.status == 400:
        return await probe(replace(sender, counted=False), judge, asked)
    judge.accept(answer, asked)
    return replace(sender, counted=sender.counted and answer.is_counted), answer
