"""The event loop of an engine whose answers are coroutines: a real loop in a real thread, an engine that is a list."""

import asyncio
import threading
import time

import pytest

from engines.adapters.engine_loop import EngineLoop

PATIENCE_S = 10.0
Ended = list[str]


def ended(engine: Ended) -> None:
    engine.append("ended")


def broken() -> Ended:
    raise MemoryError("no room on the GPU")


class Waiting:
    """An answer that goes on until it is cancelled."""

    def __init__(self) -> None:
        self.has_begun, self.is_cancelled = threading.Event(), threading.Event()

    async def __call__(self) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled.set()
            raise


def test_engine_that_cannot_be_made_is_an_error_where_it_is_waited_for() -> None:
    with pytest.raises(MemoryError, match="no room on the GPU"):
        EngineLoop(broken, ended)


def test_cancelled_answer_ends_alone_and_once() -> None:
    loop: EngineLoop[Ended] = EngineLoop(list, ended)
    first, second = Waiting(), Waiting()
    cancel, _ = loop.begin(first), loop.begin(second)
    assert second.has_begun.wait(PATIENCE_S)
    assert len(loop) == 2
    cancel()
    cancel()
    assert first.is_cancelled.wait(PATIENCE_S)
    assert not second.is_cancelled.is_set()
    loop.close()
    cancel()


def test_answer_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    loop: EngineLoop[Ended] = EngineLoop(list, ended)
    holds, is_enough = threading.Event(), threading.Event()

    async def hold() -> None:
        holds.set()
        is_enough.wait(PATIENCE_S)

    loop.begin(hold)
    assert holds.wait(PATIENCE_S)
    late = Waiting()
    loop.begin(late)()
    is_enough.set()
    after = Waiting()
    loop.begin(after)
    assert after.has_begun.wait(PATIENCE_S)
    give_up_at = time.monotonic() + PATIENCE_S
    while len(loop) != 1 and time.monotonic() < give_up_at:  # who ends is forgotten a turn of the loop later
        time.sleep(0.001)
    assert len(loop) == 1
    loop.close()
    assert not late.has_begun.is_set()


def test_close_cancels_answers_before_the_engine_ends() -> None:
    loop: EngineLoop[Ended] = EngineLoop(list, ended)
    answer = Waiting()
    loop.begin(answer)
    assert answer.has_begun.wait(PATIENCE_S)
    loop.close()
    assert answer.is_cancelled.is_set()
    assert (loop.engine, len(loop)) == (["ended"], 0)
