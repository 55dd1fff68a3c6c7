"""The thread that steps the engine, and the way to it from an event loop or any other thread.

In: submit and cancel. Out: tokens to each request's receiver; all tokens that are ready at one moment come in one call
through `post`. Knows no wire; the outlet decides when tokens leave.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from engines.reference.engine import Engine, EngineLoad, TokenOutput
from engines.reference.outlet import Outlet
from engines.reference.sampling import SamplingParams


class Receiver(Protocol):
    """Where an answer goes. The last output of an answer carries its finish reason; `failed` ends it instead."""

    def tokens(self, outputs: Sequence[TokenOutput]) -> None: ...

    def failed(self, message: str) -> None: ...


Post = Callable[..., Any]  # runs a function with its arguments where receivers live: loop.call_soon_threadsafe


def post_inline(function: Callable[..., None], *arguments: Any) -> None:  # any arguments, handed on as they are
    """Calls the function at once, for receivers that may be called on the runner's own threads."""
    function(*arguments)


class Runner:
    """Steps an engine on a thread. Start it, submit with ids that are unique among the requests in flight, close it."""

    def __init__(self, engine: Engine, post: Post, outlet: Outlet | None = None) -> None:
        self._engine = engine
        self._post = post
        self._outlet = outlet or Outlet()
        self._receivers: dict[str, Receiver] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._generated_tokens = 0
        self._error: str | None = None  # why the thread is dead

    def __repr__(self) -> str:
        stats = self.stats
        return f"<Runner running={stats.running} waiting={stats.waiting} of {stats.capacity}>"

    def start(self) -> None:
        self._outlet.start(self._hand_out, self.wake)
        self._thread.start()

    def close(self) -> None:
        """End the threads after the step that they are in; receivers are not called any more."""
        self._receivers.clear()
        self._is_closing = True
        self.wake()
        self._thread.join()
        self._outlet.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, receiver: Receiver) -> None:
        self._receivers[request_id] = receiver
        if self._error is not None:
            self._post(self._fail, request_id, self._error)
            return
        self._outlet.arrive(request_id, prompt, self._engine.find_tokens(prompt, params))
        self._command(lambda: self._add(request_id, prompt, params))

    def cancel(self, request_id: str) -> None:
        """Cancels a request; idempotent, and harmless after its end. The receiver is not called any more."""
        if self._receivers.pop(request_id, None) is not None:
            self._outlet.leave(request_id)
            self._command(lambda: self._engine.cancel(request_id))

    def wake(self) -> None:
        with self._wake:
            self._wake.notify()

    @property
    def stats(self) -> EngineLoad:
        """The load as clients see it: a paced request is in the engine until its last token has left."""
        return self._outlet.describe(replace(self._engine.stats, generated_tokens=self._generated_tokens))

    def _command(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
        except Exception as exc:  # noqa: BLE001 - the thread's outermost edge: all its requests fail
            self._error = f"The engine failed: {type(exc).__name__}: {exc}"
            self._post(self._fail_all, self._error)

    def _turn(self) -> None:
        for command in self._take_commands():
            command()
        if self._has_work():
            self._outlet.computed(self._engine.step(self._outlet.wanted()))

    def _take_commands(self) -> list[Callable[[], None]]:
        """Sleep until there is a command, or tokens to compute."""
        with self._wake:
            while not (self._commands or self._is_closing or self._has_work()):
                self._wake.wait()
            taken = list(self._commands)
            self._commands.clear()
        return taken

    def _has_work(self) -> bool:
        wanted, stats = self._outlet.wanted(), self._engine.stats
        return bool(stats.running or stats.waiting) if wanted is None else bool(wanted)

    def _add(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        try:
            self._engine.add(request_id, prompt, params)
        except ValueError as exc:
            self._outlet.leave(request_id)
            self._post(self._fail, request_id, str(exc))

    def _hand_out(self, outputs: Sequence[TokenOutput]) -> None:
        if outputs:
            self._generated_tokens += len(outputs)
            self._post(self._deliver, outputs)

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        answers: dict[str, list[TokenOutput]] = {}
        for output in outputs:
            answers.setdefault(output.request_id, []).append(output)
        for request_id, answer in answers.items():
            is_last = answer[-1].finish_reason is not None
            receiver = self._receivers.pop(request_id, None) if is_last else self._receivers.get(request_id)
            if receiver is not None:
                receiver.tokens(answer)

    def _fail(self, request_id: str, message: str) -> None:
        receiver = self._receivers.pop(request_id, None)
        if receiver is not None:
            receiver.failed(message)

    def _fail_all(self, message: str) -> None:
        for request_id in list(self._receivers):
            self._fail(request_id, message)
