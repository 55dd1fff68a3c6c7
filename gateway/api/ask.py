"""A parsed body in, an Ask out: what the engines shall do, and how the client wants to hear of it.

The wire -> core translation: after it, every value is valid and fits the model's context. Knows no JSON and no HTTP.
"""

from dataclasses import dataclass

from gateway.api.envelope import Envelope
from gateway.api.frames import Fold, Frames, Head, Stream
from gateway.api.generation import Generation
from gateway.core import GenerateRequest, Prompt, SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage, TextDecoder

GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation as a client asked for it. Decoder and frames are made afresh for every attempt."""

    request: GenerateRequest
    language: ModelLanguage
    stop: tuple[str, ...]
    head: Head
    stream: bool
    include_usage: bool

    def decoder(self) -> TextDecoder:
        return self.language.decoder(self.request, self.stop)

    def frames(self) -> Frames:
        return Stream(self.head, self.include_usage) if self.stream else Fold(self.head)


def translate(body: Generation, language: ModelLanguage, envelope: Envelope) -> Ask:
    """Raises InvalidRequest and ContextLengthExceeded, naming the field."""
    _check(body, language)
    prompt = body.encode(language)
    request = GenerateRequest(
        request_id=envelope.request_id,
        model=body.model,
        prompt=prompt,
        params=_sampling(body, _fit_max_tokens(body, language, prompt)),
        eos_token_ids=language.eos_token_ids,
        pin=envelope.pin,
        run=envelope.run,
    )
    return Ask(
        request=request,
        language=language,
        stop=body.stop_strings,
        head=Head(body.dialect, envelope.request_id, envelope.created, body.model),
        stream=body.stream,
        include_usage=body.wants_usage,
    )


def _check(body: Generation, language: ModelLanguage) -> None:
    """What no field shows by itself."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    field, limit = body.token_limit
    if body.max_tokens is not None and body.max_tokens != limit:
        raise InvalidRequest(f"'max_tokens' and '{field}' say different things; send one.", param="max_tokens")
    if max(body.stop_token_ids, default=0) >= language.vocab_size:
        reason = f"'stop_token_ids' holds an id outside the vocabulary of {language.vocab_size} tokens."
        raise InvalidRequest(reason, param="stop_token_ids")


def _fit_max_tokens(body: Generation, language: ModelLanguage, prompt: Prompt) -> int:
    field, asked = body.token_limit  # by whichever of its two names the client used
    return language.fit(prompt, asked, prompt_param=body.prompt_field, max_tokens_param=field)


def _settle_temperature(temperature: float) -> float:
    """vLLM takes what is below 1e-5 for greedy and raises the rest to 0.01; TensorRT-LLM would divide by it."""
    if temperature < GREEDY_BELOW:
        return 0.0
    return max(temperature, LOWEST_TEMPERATURE)


def _sampling(body: Generation, max_tokens: int) -> SamplingParams:
    if body.min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' is greater than the {max_tokens} that may be generated.", param="min_tokens"
        )
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=_settle_temperature(body.temperature),
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        seed=body.seed,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        ignore_eos=body.ignore_eos,
        stop_token_ids=tuple(body.stop_token_ids),
    )
