"""The request bodies of vLLM's two generating endpoints.

In: parsed JSON. Out: a GenerateCall, or a WireError. Knows no connection; admission.py makes the engine's own checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from engines.reference.sampling import SamplingParams
from engines.reference.vllm_http.errors import Invalid, WireError, invalid_body, unknown_model
from engines.reference.vllm_http.sampling import Sampling
from engines.reference.vllm_http.served import ServedModel
from engines.reference.vllm_http.structured import ResponseFormat, StructuredOutputs

Body = TypeVar("Body", bound=BaseModel)
TokenId = Annotated[int, Field(ge=0)]
# Taken and without effect, as in vLLM unless it is started with --scheduling-policy priority.
Priority = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
DEFAULT_MAX_TOKENS = 16  # OpenAI's for completions


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class CompletionBody(Sampling):
    """The body of /v1/completions."""

    model: str | None = None
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    priority: Priority = 0
    echo: bool | None = False
    request_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def check(cls, data: Any) -> Any:  # any JSON value
        if not isinstance(data, dict):
            return data
        if data.get("stream_options") and not data.get("stream"):
            raise Invalid("Stream options can only be defined when `stream=True`.", "stream_options")
        if data.get("prompt") in (None, ""):
            raise Invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        return data

    @model_validator(mode="after")
    def check_logprobs(self) -> "CompletionBody":
        if self.stream and self.prompt_logprobs:
            raise Invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        for name in ("prompt_logprobs", "logprobs"):
            count = getattr(self, name)
            if count is not None and count < -1:
                raise Invalid(f"`{name}` must be a positive value or -1.", name, count)
        return self

    def structure(self) -> StructuredOutputs | None:
        return self.response_format.over(self.structured_outputs) if self.response_format else self.structured_outputs


class GenerateSampling(Sampling):
    """The object `sampling_params` in the body of /inference/v1/generate."""

    detokenize: bool = True


class GenerateBody(BaseModel):
    """The body of /inference/v1/generate."""

    model: str | None = None
    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    sampling_params: GenerateSampling
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    output_mode: Literal["tokens"] = "tokens"
    priority: Priority = 0
    request_id: str | None = None


@dataclass(frozen=True)
class GenerateCall:
    """One generation, checked. `echoes_ids`: return_token_ids, which the endpoints read differently.

    `names_ids`: return_tokens_as_token_ids. `spells_prompt`: the prompt's logprobs have the texts of tokens.
    `echoes_prompt`: echo; with max_tokens 0 only the prompt is returned, although vLLM generates and counts a token.
    Admission turns `structured` into the guide of `params`. `refusal`: why a stream was not admitted.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    is_streaming: bool
    usage: StreamOptions
    echoes_ids: bool
    names_ids: bool = False
    spells_prompt: bool = True
    echoes_prompt: bool = False
    is_prompt_only: bool = False
    structured: StructuredOutputs | None = None
    refusal: WireError | None = None


def parse_completion(data: object, model: ServedModel, request_id: str | None) -> GenerateCall:
    body = validate(CompletionBody, data)
    check_model(body.model, model)
    prompt = _encode(body.prompt, model)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    _check_completion_length(len(prompt), max_tokens, model.max_model_len)
    is_prompt_only = bool(body.echo) and max_tokens == 0
    params = body.to_params(
        model.eos_token_ids, min(1 if is_prompt_only else max_tokens, model.max_model_len - len(prompt))
    )
    if body.echo and params.prompt_logprobs is None:
        params = replace(params, prompt_logprobs=params.logprobs)
    return GenerateCall(
        request_id=f"cmpl-{request_id or body.request_id or model.new_id()}",
        prompt=tuple(prompt),
        params=params,
        is_streaming=bool(body.stream),
        usage=body.stream_options or StreamOptions(),
        echoes_ids=bool(body.return_token_ids),
        names_ids=bool(body.return_tokens_as_token_ids),
        echoes_prompt=bool(body.echo),
        is_prompt_only=is_prompt_only,
        structured=body.structure(),
    )


def parse_generate(data: object, model: ServedModel, request_id: str | None) -> GenerateCall:
    body = validate(GenerateBody, data)
    check_model(body.model, model)
    room = model.max_model_len - len(body.token_ids)
    wanted = body.sampling_params.max_tokens
    params = body.sampling_params.to_params(model.eos_token_ids, wanted if wanted is not None else max(room, 1))
    return GenerateCall(
        request_id=f"generate-tokens-{request_id or body.request_id or model.new_id()}",
        prompt=tuple(body.token_ids),
        params=params,
        is_streaming=bool(body.stream),
        usage=body.stream_options or StreamOptions(),
        echoes_ids=bool(body.return_token_ids),
        spells_prompt=body.sampling_params.detokenize,
        structured=body.sampling_params.structured_outputs,
    )


def validate(kind: type[Body], data: object) -> Body:
    try:
        return kind.model_validate(data)
    except ValidationError as exc:
        raise invalid_body(exc) from exc


def check_model(name: str | None, model: ServedModel) -> None:
    if name and name != model.name:
        raise unknown_model(name, model.name)


def _encode(prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], model: ServedModel) -> Sequence[int]:
    if isinstance(prompt, str):
        return model.encode(prompt)
    if not prompt:
        raise WireError("You must pass at least one prompt")
    if isinstance(prompt[0], int):
        return [int(token_id) for token_id in prompt if isinstance(token_id, int)]
    if len(prompt) > 1:
        raise WireError("The reference engine takes one prompt per request.", param="prompt")
    return _encode(prompt[0], model)


def _check_completion_length(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    if max_tokens > max_model_len:
        raise Invalid(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. Please request fewer "
            "output tokens.",
            "max_tokens",
            max_tokens,
        )
    if prompt_tokens > max_model_len:
        raise Invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce the "
            "length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
