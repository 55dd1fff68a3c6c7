"""vLLM's sampling fields and its checks of them, in its words.

In: parsed JSON. Out: the engine's SamplingParams, or a WireError.
"""

import math
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from engines.reference.sampling import SamplingParams
from engines.reference.vllm_http.errors import Invalid
from engines.reference.vllm_http.structured import StructuredOutputs

MAX_BIAS = 100.0
MIN_TEMPERATURE = 0.01  # vLLM raises temperatures between it and 0; only 0 is greedy


class Sampling(BaseModel):
    """Fields both endpoints share. None is vLLM's default under `--generation-config vllm`."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    structured_outputs: StructuredOutputs | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    # Fields that change an answer and that this engine lacks are refused; values that change nothing pass.
    unsupported: ClassVar[dict[str, object]] = {
        "n": 1,
        "best_of": 1,
        "stop": [],
        "bad_words": [],
        "allowed_token_ids": [],
        "logprob_token_ids": [],
        "truncate_prompt_tokens": None,
        "use_beam_search": False,
        "suffix": None,
    }

    @model_validator(mode="before")
    @classmethod
    def refuse_unsupported(cls, data: Any) -> Any:  # any JSON value
        for name, neutral in cls.unsupported.items() if isinstance(data, dict) else ():
            if data.get(name) is not None and data[name] != neutral:
                raise Invalid(f"`{name}` is not supported by the reference engine.", name)
        return data

    def to_params(self, eos_token_ids: tuple[int, ...], max_tokens: int) -> SamplingParams:
        temperature = 1.0 if self.temperature is None else self.temperature
        self._check(max_tokens, temperature)
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            min_p=self.min_p or 0.0,
            seed=None if self.seed == -1 else self.seed,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            end_ids=eos_token_ids,
            stop_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logit_bias=self._bias(),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _bias(self) -> tuple[tuple[int, float], ...]:
        given = self.logit_bias or {}
        wrong = [token_id for token_id in given if not is_integer(token_id)]
        if wrong:
            message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
            raise Invalid(message, "logit_bias", wrong)
        return tuple((int(token_id), min(MAX_BIAS, max(-MAX_BIAS, bias))) for token_id, bias in given.items())

    def _check(self, max_tokens: int, temperature: float) -> None:
        """vLLM names the parameter in some of these errors and not in others."""
        self._check_penalties()
        for is_valid, message, parameter, value in (
            (math.isfinite(temperature), "temperature must be a finite number, got {}.", "temperature", temperature),
            (temperature >= 0, "temperature must be non-negative, got {}.", "temperature", temperature),
            (temperature <= 2, "temperature must be in [0, 2], got {}.", "temperature", temperature),
            (self.top_p is None or 0 < self.top_p <= 1, "top_p must be in (0, 1], got {}.", "top_p", self.top_p),
            ((self.top_k or 0) >= -1, "top_k must be 0 (disable), or at least 1, got {}.", None, self.top_k),
            (0 <= (self.min_p or 0.0) <= 1, "min_p must be in [0, 1], got {}.", None, self.min_p),
            *(
                ((count or 0) >= -1, f"{name} must be non-negative or -1, got {{}}.", name, count)
                for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs))
            ),
            (max_tokens >= 1, "max_tokens must be at least 1, got {}.", "max_tokens", max_tokens),
            (self.min_tokens >= 0, "min_tokens must be greater than or equal to 0, got {}.", None, self.min_tokens),
            (
                self.min_tokens <= max_tokens,
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {{}}.",
                None,
                self.min_tokens,
            ),
        ):
            if not is_valid:
                raise Invalid(message.format(value), parameter, value)

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= (getattr(self, name) or 0.0) <= 2:
                raise Invalid(f"{name} must be in [-2, 2], got {getattr(self, name)}.")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise Invalid(f"repetition_penalty must be greater than zero, got {self.repetition_penalty}.")


def is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
