"""vLLM's sampling fields and its checks of them, in its words.

In: parsed JSON. Out: the engine's SamplingParams, or a WireError.
"""

from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, Field, model_validator

from engines.reference.sampling import SamplingParams
from engines.reference.vllm_http.errors import Invalid
from engines.reference.vllm_http.structured import StructuredOutputs

MAX_BIAS = 100.0
MAX_TEMPERATURE = 2.0
MIN_TEMPERATURE = 0.01  # vLLM raises temperatures between it and 0; only 0 is greedy
# Fields that vLLM names as the parameter of their error.
NAMED: Final = frozenset({"temperature", "top_p", "max_tokens", "logprobs", "prompt_logprobs"})


class Sampling(BaseModel):
    """The fields that both endpoints share. None is vLLM's default under `--generation-config vllm`."""

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
        if temperature > MAX_TEMPERATURE:
            raise Invalid(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
        bias = self._bias()
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                min_tokens=self.min_tokens,
                temperature=temperature if temperature <= 0 else max(temperature, MIN_TEMPERATURE),
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
                logit_bias=bias,
                logprobs=self.logprobs,
                prompt_logprobs=self.prompt_logprobs,
            )
        except ValueError as exc:
            field = str(exc).partition(" ")[0]
            raise Invalid(f"{exc}.", field if field in NAMED else None) from exc

    def _bias(self) -> tuple[tuple[int, float], ...]:
        given = self.logit_bias or {}
        wrong = [token_id for token_id in given if not is_integer(token_id)]
        if wrong:
            message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
            raise Invalid(message, "logit_bias", wrong)
        return tuple((int(token_id), min(MAX_BIAS, max(-MAX_BIAS, bias))) for token_id, bias in given.items())


def is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True
