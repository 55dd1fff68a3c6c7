"""The bodies of vLLM's two generating endpoints as JSON: whole, in chunks, and the usage chunk at a stream's end.

In: a GenerateCall and its tokens. Out: JSON values. Pure; a body remembers only what it has returned so far.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engines.reference.engine import TokenOutput
from engines.reference.scores import Score
from engines.reference.vllm_http import logprobs
from engines.reference.vllm_http.logprobs import CompletionLogprobs, Json, Spelling
from engines.reference.vllm_http.requests import GenerateCall
from engines.reference.vllm_http.served import ServedModel

FINGERPRINT = "crossover-reference"
NO_DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}


@dataclass(frozen=True)
class Piece:
    """Tokens that leave together, how many the answer has so far, and its finish reason if they are the last.

    `cached`: prompt tokens from a prefix cache, as far as the server shows them.
    """

    outputs: Sequence[TokenOutput]
    total: int
    finish_reason: str | None = None
    stop_reason: int | None = None
    cached: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [output.token_id for output in self.outputs]

    @property
    def scores(self) -> list[Score]:
        """The tokens' scores, empty where they were not asked for."""
        return [output.score for output in self.outputs if output.score is not None]

    @property
    def prompt_scores(self) -> Sequence[Score | None] | None:
        return self.outputs[0].prompt_scores if self.outputs else None


def usage(call: GenerateCall, piece: Piece) -> Json:
    prompt_tokens, completion_tokens = len(call.prompt), piece.total
    used: Json = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    return used | {"prompt_tokens_details": {"cached_tokens": piece.cached}} if piece.cached else used


class CompletionResponse:
    """The response of /v1/completions: text, and the ids beside it if they were asked for."""

    def __init__(self, call: GenerateCall, model: ServedModel) -> None:
        self._call = call
        self._model = model
        self._decoder = model.decoder(call.prompt)
        self._logprobs = CompletionLogprobs(model, call.params.logprobs or 0, names_ids=call.names_ids)
        self._owes_prompt = call.echoes_prompt
        self._head: Json = {
            "id": call.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._prompt_ids = list(call.prompt) if call.echoes_ids or call.echoes_prompt else None

    def chunk(self, piece: Piece) -> Json:
        choice = self._choice(piece) | {"prompt_token_ids": self._prompt_ids, "token_ids": self._ids(piece)}
        self._prompt_ids = None
        chunk = self._head | {"choices": [choice]}
        options = self._call.usage
        if options.continuous_usage_stats and options.include_usage:
            chunk["usage"] = usage(self._call, piece)
        if piece.finish_reason is not None and not options.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return chunk

    def usage_chunk(self, last: Piece) -> Json:
        used = usage(self._call, last)
        return self._head | {"choices": [], "usage": used, "system_fingerprint": FINGERPRINT}

    def whole(self, piece: Piece) -> Json:
        choice = self._choice(piece) | {
            "token_ids": self._ids(piece),
            "prompt_logprobs": prompt_logprobs(self._call, self._model, piece),
            "prompt_token_ids": self._prompt_ids if self._call.echoes_ids else None,
            "routed_experts": None,
        }
        return self._head | {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": NO_DETAILS | usage(self._call, piece),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, piece: Piece) -> Json:
        choice = {
            "index": 0,
            "text": self._text(piece),
            "logprobs": None if self._call.params.logprobs is None else self._logprobs_of(piece),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        self._owes_prompt = False
        return choice

    def _text(self, piece: Piece) -> str:
        """Returns the text. Where ids are returned, the prompt's text is left out, but not its log-probabilities."""
        echoed = self._model.decode(self._call.prompt) if self._owes_prompt and not self._call.echoes_ids else ""
        return echoed if self._call.is_prompt_only else echoed + self._decoder.feed(piece.token_ids)

    def _logprobs_of(self, piece: Piece) -> Json:
        parts = []
        if self._owes_prompt:
            parts.append(self._logprobs.echo(self._call.prompt[0], piece.prompt_scores or ()))
        if not self._call.is_prompt_only:
            parts.append(self._logprobs.feed(piece.scores))
        return {name: [value for part in parts for value in part[name]] for name in parts[0]}

    def _ids(self, piece: Piece) -> list[int] | None:
        return piece.token_ids if self._call.echoes_ids else None


class GenerateResponse:
    """The response of /inference/v1/generate: ids alone."""

    def __init__(self, call: GenerateCall, model: ServedModel) -> None:
        self._call = call
        self._model = model
        self._prompt_ids = list(call.prompt) if call.echoes_ids else None

    def chunk(self, piece: Piece) -> Json:
        options = self._call.usage
        is_counting = options.continuous_usage_stats and options.include_usage
        used = NO_DETAILS | usage(self._call, piece) if is_counting else None
        chunk: Json = {"request_id": self._call.request_id, "usage": used}
        if self._prompt_ids is not None:
            chunk["prompt_token_ids"] = self._prompt_ids
            self._prompt_ids = None
        return chunk | {"output_mode": "tokens", "choices": [self._choice(piece)]}

    def usage_chunk(self, last: Piece) -> Json:
        used = usage(self._call, last)
        return {"request_id": self._call.request_id, "usage": used, "output_mode": "tokens", "choices": []}

    def whole(self, piece: Piece) -> Json:
        return {
            "request_id": self._call.request_id,
            "model": self._model.name,
            "created": int(time.time()),
            "usage": NO_DETAILS | usage(self._call, piece),
            "prompt_logprobs": prompt_logprobs(self._call, self._model, piece),
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": self._prompt_ids,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [self._choice(piece)],
        }

    def _choice(self, piece: Piece) -> Json:
        is_last = piece.finish_reason is not None
        count = self._call.params.logprobs
        return {
            "index": 0,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": piece.token_ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "default", "start": 0, "end": piece.total}] if is_last else None,
            "logprobs": None if count is None else logprobs.of_ids(piece.scores, count),
        }


ResponseBody: TypeAlias = CompletionResponse | GenerateResponse


def prompt_logprobs(call: GenerateCall, model: ServedModel, piece: Piece) -> list[Json | None] | None:
    spelling = Spelling(model, names_ids=False) if call.spells_prompt else None
    return logprobs.of_prompt(piece.prompt_scores, spelling)
