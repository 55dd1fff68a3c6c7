"""An answer in the tensor contract of TensorRT-LLM's `tensorrt_llm` model: tokens in, the arrays of its responses out.

Knows neither gRPC nor Triton nor an engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engines.reference.trtllm_contract import Array, TokenRequest


def encode_output(token_ids: Sequence[int], logprobs: Sequence[float], cumulative: float) -> dict[str, Array]:
    """All outputs for one response of one beam."""
    return {
        "output_ids": np.array([[token_ids]], np.int32),
        "sequence_length": np.array([[len(token_ids)]], np.int32),
        "cum_log_probs": np.array([[cumulative]], np.float32),
        "output_log_probs": np.array([[logprobs]], np.float32),
    }


@dataclass
class TensorAnswer:
    """Folds an engine's tokens into responses: drops the end token, matches stop words, gathers if not streaming."""

    request: TokenRequest
    is_final: bool = False
    _tail: list[int] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _cumulative: float = 0.0

    def feed(self, token_id: int, logprob: float | None, finish_reason: str | None) -> None:
        """Takes one more token, in order. Ignores it once `is_final`."""
        if self.is_final:
            return
        self.is_final = finish_reason is not None
        if finish_reason == "stop":  # TensorRT-LLM neither returns nor counts the end token
            return
        self._ids.append(token_id)
        self._logprobs.append(logprob or 0.0)
        self._cumulative += logprob or 0.0
        self.is_final = self._ends_a_stop_word(token_id) or self.is_final

    def take(self) -> dict[str, Array] | None:
        """The tensors of a response if one is due: the new tokens when streaming, else all tokens at the end."""
        if not self.is_final and not (self.request.is_streaming and self._ids):
            return None
        prompt = self.request.prompt if self.request.includes_prompt else ()
        output = encode_output([*prompt, *self._ids], self._logprobs, self._cumulative)
        self._ids, self._logprobs = [], []
        return output

    def end(self) -> dict[str, Array]:
        """The final response of an answer that is ended early, with the tokens so far."""
        self.is_final = True
        output = self.take()
        assert output is not None
        return output

    def _ends_a_stop_word(self, token_id: int) -> bool:
        words = self.request.stop_words
        if not words:
            return False
        self._tail = [*self._tail, token_id][-max(map(len, words)) :]
        return any(tuple(self._tail[-len(word) :]) == word for word in words)
