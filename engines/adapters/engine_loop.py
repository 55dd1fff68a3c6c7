"""An event loop in a thread of its own, for an engine whose answers are coroutines.

In: how the engine is made and ended, and answers from any thread. Out: the engine, and functions that cancel answers.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from itertools import count
from typing import Any, Generic, TypeVar

Engine = TypeVar("Engine")
Work = Callable[[], Coroutine[Any, Any, None]]  # no values sent or yielded


class EngineLoop(Generic[Engine]):
    """An engine on its loop. The constructor waits for it, and raises its error. `len` counts the answers in flight."""

    def __init__(self, make: Callable[[], Engine], end: Callable[[Engine], None]) -> None:
        self._ids = count()
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        made: Future[Engine] = Future()
        self._thread = threading.Thread(target=self._run, args=(make, end, made), name="engine loop", daemon=True)
        self._thread.start()
        self.engine = made.result()

    def __len__(self) -> int:
        return len(self._answers)

    def begin(self, work: Work) -> Callable[[], None]:
        """Start `work` on the loop. The returned function cancels it: idempotent, and harmless after its end."""
        answer_id = next(self._ids)
        self._post(self._begin, answer_id, work)
        return lambda: self._post(self._cancel, answer_id)

    def close(self) -> None:
        """Cancel all answers, end the engine and the thread."""
        self._post(self._closing.set)
        self._thread.join()

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:  # any arguments, handed on as they are
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, make: Callable[[], Engine], end: Callable[[Engine], None], made: Future[Engine]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(make, end, made))

    async def _serve(self, make: Callable[[], Engine], end: Callable[[Engine], None], made: Future[Engine]) -> None:
        try:
            engine = make()
        # Edge of the thread: the error is raised where the engine is waited for.
        except BaseException as exc:  # noqa: BLE001 - raised again there
            made.set_exception(exc)
            return
        try:
            async with asyncio.TaskGroup() as self._group:
                made.set_result(engine)
                await self._closing.wait()
                for answer in self._answers.values():
                    answer.cancel()
        finally:
            end(engine)

    def _begin(self, answer_id: int, work: Work) -> None:
        if self._closing.is_set():
            return
        answer = self._answers[answer_id] = self._group.create_task(work())
        # Not in the coroutine: an answer that is cancelled at once never enters it.
        answer.add_done_callback(lambda _: self._answers.pop(answer_id))

    def _cancel(self, answer_id: int) -> None:
        if (answer := self._answers.get(answer_id)) is not None:
            answer.cancel()
