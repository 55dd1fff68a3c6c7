"""One generation in flight on the HTTP wire: a Receiver that gathers tokens until they are read.

In: tokens, aborts. Out: pieces; tokens that came before the last piece was read are merged, as in vLLM.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from engines.reference.engine import TokenOutput
from engines.reference.vllm_http.requests import GenerateCall
from engines.reference.vllm_http.responses import Piece
from engines.reference.vllm_http.served import ServedModel


class AnswerFailed(Exception):
    """The engine could not go on; the message is the engine's."""


class AnswerInFlight:
    """One generation's Receiver. Call `start`, read `pieces` or the `whole`, and call `close` in any case."""

    def __init__(self, call: GenerateCall, model: ServedModel) -> None:
        self.call = call
        self._model = model
        self._runner_id = model.next_runner_id()
        self._outputs: list[TokenOutput] = []
        self._total = 0
        self._cached = 0
        self._finish_reason: str | None = None
        self._stop_reason: int | None = None
        self._error: str | None = None
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._model.answers[self.call.request_id] = self
        self._model.runner.submit(self._runner_id, self.call.prompt, self.call.params, self)

    def close(self) -> None:
        """Cancel the engine's work and forget the answer."""
        self._model.runner.cancel(self._runner_id)
        if self._model.answers.get(self.call.request_id) is self:
            del self._model.answers[self.call.request_id]

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self._outputs += outputs
        self._total += len(outputs)
        self._cached = outputs[0].cached if self._model.shows_cached else 0
        last = outputs[-1]
        if last.finish_reason is not None:
            self._stop_reason = self._reason_of(last)
            self._end(last.finish_reason)
        self._changed.set()

    def failed(self, message: str) -> None:
        self._error = message
        self._end("error")

    def abort(self) -> None:
        """Ends the answer with the tokens so far."""
        self._model.runner.cancel(self._runner_id)
        if self._finish_reason is None:
            self._finish_reason = "abort"  # not counted: vLLM counts neither disconnects nor abort_requests
            self._changed.set()

    async def pieces(self) -> AsyncIterator[Piece]:
        while True:
            while not (self._outputs or self._finish_reason):
                self._changed.clear()
                await self._changed.wait()
            piece = self._take()
            yield piece
            if piece.finish_reason is not None:
                return

    async def whole(self) -> Piece:
        while self._finish_reason is None:
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def _take(self) -> Piece:
        if self._error is not None:
            raise AnswerFailed(self._error)
        outputs, self._outputs = self._outputs, []
        return Piece(outputs, self._total, self._finish_reason, self._stop_reason, self._cached)

    def _end(self, finish_reason: str) -> None:
        self._finish_reason = finish_reason
        self._model.finished[finish_reason] += 1
        self._changed.set()

    def _reason_of(self, last: TokenOutput) -> int | None:
        """The stop token; None for the model's own principal end token."""
        is_eos = not self.call.params.ignore_eos and last.token_id in self._model.eos_token_ids[:1]
        return None if last.finish_reason != "stop" or is_eos else last.token_id
