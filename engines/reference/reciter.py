"""An engine that computes nothing: it recites answers at the pace of a physical model, on the event loop.

In: submit and cancel, as a Runner has them. Out: the tokens of a step to their receivers, in one call of the loop.
Knows no wire.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from engines.reference.engine import EngineLoad, TokenOutput
from engines.reference.paced_load import describe_paced
from engines.reference.pacing import Due, Pacer
from engines.reference.recital import Recital
from engines.reference.runner import Receiver
from engines.reference.sampling import SamplingParams


@dataclass(slots=True)
class _Answer:
    recital: Recital
    receiver: Receiver
    generated: int = 0


class Reciter:
    """Use it on one event loop. `words`: the ids that answers are made of."""

    def __init__(self, pacer: Pacer, words: Sequence[int], context_length: int) -> None:
        self._pacer = pacer
        self._words = words
        self._context_length = context_length
        self._answers: dict[str, _Answer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._prompt_tokens = self._generated_tokens = 0

    def __repr__(self) -> str:
        return f"<Reciter {self._pacer!r}>"

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._answers.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_alive(self) -> bool:
        return True

    def submit(self, request_id: str, prompt: Sequence[int], params: SamplingParams, receiver: Receiver) -> None:
        tokens = min(params.max_tokens, self._context_length - len(prompt))
        self._answers[request_id] = _Answer(Recital(prompt, params, self._words, tokens), receiver)
        self._prompt_tokens += len(prompt)
        self._go_on()
        self._pacer.arrive(request_id, prompt, tokens, self._loop.time())
        self._go_on()

    def cancel(self, request_id: str) -> None:
        """Cancels a request; idempotent, and harmless after its end. The receiver is not called any more."""
        if self._answers.pop(request_id, None) is not None:
            self._pacer.leave(request_id)

    @property
    def stats(self) -> EngineLoad:
        total = self._pacer.engine.max_sequences * self._context_length * self._pacer.engine.replicas
        load = EngineLoad(
            running=0,
            waiting=0,
            capacity=0,
            kv_tokens_used=self._pacer.context,
            kv_tokens_total=total,
            steps=self._pacer.counts.steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
        )
        return describe_paced(load, self._pacer)

    def _go_on(self) -> None:
        """Hands out what is due, and sets the timer to what is due next."""
        for due in self._pacer.advance(self._loop.time()):
            answer = self._answers.get(due.request_id)
            if answer is not None:  # else it was cancelled, or has ended before its last token
                self._hand_out(due, answer)
        at = self._pacer.next_due()
        if self._timer is not None and self._timer.when() != at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at < math.inf:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._go_on()

    def _hand_out(self, due: Due, answer: _Answer) -> None:
        outputs: list[TokenOutput] = []
        take = answer.recital.take
        reason = None
        while len(outputs) < due.tokens and reason is None:
            token_id, reason = take()
            answer.generated += 1
            outputs.append(TokenOutput(due.request_id, token_id, None, reason, answer.generated, None, due.cached))
        self._generated_tokens += len(outputs)
        if reason is not None:
            self.cancel(due.request_id)
        answer.receiver.tokens(outputs)
