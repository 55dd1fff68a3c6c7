"""How an answer's tokens are chosen, as OpenAI's endpoints name it, with vLLM's extensions to it."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from gateway.core import Guide, Need, SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.response_format import StructuredOutputs
from gateway.wire.body import Body
from gateway.wire.fields import ITEMS, TEXT, StopText, by_type, refusal

INT32_END, INT64_END = 2**31, 2**63
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=INT32_END)]

Stop: TypeAlias = Annotated[
    Annotated[StopText, TEXT] | Annotated[list[StopText], Field(max_length=4), ITEMS],  # 4 is OpenAI's limit
    by_type("must be a string or a list of up to 4 strings"),
]

MAX_BIASES = 1024
MAX_NAMED, MAX_SHOWN = 5, 40  # wrong keys in an error, and characters of each
BIASED = re.compile(r"0|[1-9][0-9]{0,9}")
Tier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast"]
TIERS: Mapping[Tier | None, int] = {"priority": -1, "fast": -1, "flex": 1}  # priorities that they stand for
PENALTIES: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}  # off


def _check_biased(biases: object) -> object:
    """Checks that keys are token ids as JSON writes them; pydantic's own error would not name the field."""
    if not isinstance(biases, dict):
        return biases
    if len(biases) > MAX_BIASES:
        raise refusal(f"must not have more than {MAX_BIASES} entries")
    if wrong := [repr(key[:MAX_SHOWN]) for key in biases if not BIASED.fullmatch(key)]:
        others = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
        raise refusal(f"must have token ids for keys, not {', '.join(wrong[:MAX_NAMED])}{others}")
    return biases


LogitBias: TypeAlias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_check_biased)]


def _check_seed(seed: object) -> object:
    """Refuses what does not fit 64 bits. The JSON reader makes a float of it, which pydantic would call the fault."""
    if isinstance(seed, float) and abs(seed) >= INT64_END:
        raise refusal(f"must be an integer from {-INT64_END} to {INT64_END - 1}")
    return seed


class Sampled(Body):
    """A body with the fields that decide how tokens are chosen, and where an answer ends."""

    stop: Stop | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-INT64_END, lt=INT64_END), BeforeValidator(_check_seed)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: LogitBias | None = None

    # vLLM's extensions
    top_k: Annotated[int, Field(ge=-1, lt=INT32_END)] = 0  # -1 and 0 both mean off
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=2)] = 1.0
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Field(max_length=128, default_factory=list, fail_fast=True)]
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Field(ge=-INT32_END, lt=INT32_END)] = 0

    @property
    def tier(self) -> Tier | None:
        """The `service_tier` that the client asks for."""
        return None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives to show beside each token's log-probability; None: show no log-probabilities."""
        return None

    @property
    def prompt_logprob_count(self) -> int | None:
        """How many alternatives to show for the prompt's tokens; None: show no log-probabilities."""
        return None

    @cached_property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """Token ids and what is added to their logits; the ids are not checked against a vocabulary yet."""
        return tuple((int(key), bias) for key, bias in (self.logit_bias or {}).items() if bias)

    def check(self, language: ModelLanguage) -> None:
        if max(self.stop_token_ids, default=0) >= language.vocab_size:
            reason = f"'stop_token_ids' holds an id outside the vocabulary of {language.vocab_size} tokens."
            raise InvalidRequest(reason, param="stop_token_ids")
        if max((token_id for token_id, _ in self.bias), default=0) >= language.vocab_size:
            reason = f"'logit_bias' holds an id outside the vocabulary of {language.vocab_size} tokens."
            raise InvalidRequest(reason, param="logit_bias")

    def sampling(self, max_tokens: int, guide: Guide | None) -> SamplingParams:
        if self.min_tokens > max_tokens:
            reason = f"'min_tokens' is greater than the {max_tokens} that may be generated."
            raise InvalidRequest(reason, param="min_tokens")
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            min_p=self.min_p,
            logit_bias=self.bias,
            logprobs=self.logprob_count,
            prompt_logprobs=self.prompt_logprob_count,
            guide=guide,
            priority=self.priority or TIERS.get(self.tier, 0),
        )

    def sampling_needs(self) -> Mapping[Need, str]:
        needs = {}
        if self.logprob_count is not None:
            needs[Need.LOGPROBS] = "logprobs"
        if self.prompt_logprob_count is not None:
            needs[Need.PROMPT_LOGPROBS] = "echo"
        return {**needs, **dict(self._choosing_needs())}

    def _choosing_needs(self) -> Iterator[tuple[Need, str]]:
        if self.bias:
            yield Need.LOGIT_BIAS, "logit_bias"
        if self.min_p:
            yield Need.MIN_P, "min_p"
        for name, neutral in PENALTIES.items():
            if getattr(self, name) != neutral:
                yield Need.PENALTIES, name
                break
        # Where no token can end the answer early, it is not sent to the engine.
        if self.min_tokens and (self.stop_token_ids or not self.ignore_eos):
            yield Need.MIN_TOKENS, "min_tokens"
