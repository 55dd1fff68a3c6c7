"""A parsed body in, Generations out: what the engines shall generate, and how the client wants to see it.

The wire -> core translation: after it, every value is valid and fits the model's context. Knows no JSON and no HTTP.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.core import GenerateRequest, Guide, Prompt, SamplingParams
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.frames import CHAT, AnswerHead, ChoiceGroup
from gateway.openai.generation import Generation
from gateway.openai.presentation import ChoiceParts, Parsing, Place, Presentation

GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
# Engines compile a form while their other requests wait: half a megabyte of it held the reference engine up for 5 s.
MAX_GUIDE_CHARACTERS = 65_536
INT64_END, UINT64_END = 2**63, 2**64


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a request has beside its body. `created` is in Unix seconds."""

    request_id: str
    created: int
    pin: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Generations:
    """What one request asks for: a generation for each choice, in the order of their index.

    What an attempt needs is made afresh for each. `prompt_tokens`: of all prompts, each counted once. `echoes`: what is
    shown of each prompt, if anything is.
    """

    requests: tuple[GenerateRequest, ...]
    language: ModelLanguage
    presentation: Presentation
    prompt_tokens: int
    echoes: tuple[str, ...] = ()

    @property
    def request(self) -> GenerateRequest:
        """The request that is placed, for all of them."""
        return self.requests[0]

    def group(self) -> ChoiceGroup:
        return ChoiceGroup(len(self.requests), self.prompt_tokens)

    def choice(self, index: int, group: ChoiceGroup) -> ChoiceParts:
        echo = self.echoes[index * len(self.echoes) // len(self.requests)] if self.echoes else ""
        return self.presentation.choice(self.language, self.requests[index], Place(index, group, echo))


def translate(
    body: Generation, language: ModelLanguage, envelope: Envelope, reasoning_field: str = "reasoning"
) -> Generations:
    """Translates a body. Raises InvalidRequest and ContextLengthExceeded, which name the field."""
    guide = body.find_guide(language)
    _check(body, language, guide)
    prompts = body.prompts(language)
    return Generations(
        requests=tuple(_requests(body, language, envelope, prompts, guide)),
        language=language,
        presentation=_presentation(body, language, envelope, prompts[0], reasoning_field),
        prompt_tokens=sum(map(len, prompts)),
        # Here, where it is done once, and for long prompts off the event loop. As in vLLM with the special tokens,
        # which their text may have spelt.
        echoes=tuple(language.decode(prompt.token_ids, shows_special=True) for prompt in prompts) if body.echo else (),
    )


def _requests(
    body: Generation, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt], guide: Guide | None
) -> Iterator[GenerateRequest]:
    """Yields the choices of each prompt in turn, as OpenAI numbers them."""
    needs, sequences = body.needs(), len(prompts) * body.n
    for place, prompt in enumerate(prompts):
        limit = language.fit(prompt, body.token_limit[1], prompt_param=body.prompt_field)
        params = _sampling(body, limit, guide)
        for choice in range(body.n):
            index = place * body.n + choice
            yield GenerateRequest(
                request_id=f"{envelope.request_id}-{index}" if index else envelope.request_id,
                model=body.model,
                prompt=prompt,
                params=_reseed(params, choice) if choice else params,
                eos_token_ids=language.eos_token_ids,
                pin=envelope.pin,
                run=envelope.run,
                needs=needs,
                sequences=sequences,
                cache_salt=body.cache_salt,
            )


def _presentation(
    body: Generation, language: ModelLanguage, envelope: Envelope, prompt: Prompt, reasoning_field: str
) -> Presentation:
    return Presentation(
        head=AnswerHead(body.dialect, envelope.request_id, envelope.created, body.model),
        stop=body.stop_strings,
        stream=body.stream,
        include_usage=body.wants_usage,
        continuous_usage=body.wants_continuous_usage,
        logprobs=body.logprob_count is not None,
        token_ids=body.wants_token_ids,
        echo=body.echo,
        include_stop=body.include_stop,
        # A guide allows what an answer holds; a special token in it is text, without which it would be no JSON.
        shows_special=body.shows_special or body.is_guided,
        reasoning=reasoning_field.encode(),
        parsing=_parsing(body, language, prompt),
    )


def _parsing(body: Generation, language: ModelLanguage, prompt: Prompt) -> Parsing | None:
    """Returns None where an answer is nothing but its text. An answer that a guide binds has no reasoning before it."""
    plan = body.tool_plan
    reasons = body.dialect is CHAT and language.reasons and not body.is_guided
    if plan is None and not reasons:
        return None
    return Parsing(
        tool_format=None if plan is None else language.tool_format,
        forced=None if plan is None else plan.forced,
        reasons=reasons,
        starts_in_reasoning=reasons and language.starts_in_reasoning(prompt),
        is_one_call=plan is not None and not plan.parallel,
    )


def _check(body: Generation, language: ModelLanguage, guide: Guide | None) -> None:
    """Makes the checks that take more than one field, or the model. Raises InvalidRequest."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    field, limit = body.token_limit
    if body.max_tokens is not None and body.max_tokens != limit:
        raise InvalidRequest(f"'max_tokens' and '{field}' say different things; send one.", param="max_tokens")
    if body.has_bounded_limit and limit is not None and limit > language.context_length:
        reason = f"'{field}' is greater than this model's context length of {language.context_length} tokens."
        raise ContextLengthExceeded(reason, param=field)
    if max(body.stop_token_ids, default=0) >= language.vocab_size:
        reason = f"'stop_token_ids' holds an id outside the vocabulary of {language.vocab_size} tokens."
        raise InvalidRequest(reason, param="stop_token_ids")
    if guide is not None and len(guide.text) > MAX_GUIDE_CHARACTERS:
        reason = f"'{body.guide_field}' makes a form of more than {MAX_GUIDE_CHARACTERS} characters."
        raise InvalidRequest(reason, param=body.guide_field)
    if guide is not None and (own := language.find_own_token(guide)) is not None:
        reason = f"'{body.guide_field}' asks for the text {own!r}, which is one token of this model's own markup."
        raise InvalidRequest(reason, param=body.guide_field)
    if max((token_id for token_id, _ in body.bias), default=0) >= language.vocab_size:
        reason = f"'logit_bias' holds an id outside the vocabulary of {language.vocab_size} tokens."
        raise InvalidRequest(reason, param="logit_bias")


def _settle_temperature(temperature: float) -> float:
    """Makes a value below 1e-5 greedy and the rest at least 0.01, as vLLM does; TensorRT-LLM would divide by it."""
    if temperature < GREEDY_BELOW:
        return 0.0
    return max(temperature, MIN_TEMPERATURE)


def _reseed(params: SamplingParams, choice: int) -> SamplingParams:
    """Returns another choice's params: the seed counts up, as in vLLM and TensorRT-LLM, and wraps around."""
    if params.seed is None:
        return params
    return replace(params, seed=(params.seed + choice + INT64_END) % UINT64_END - INT64_END)


def _sampling(body: Generation, max_tokens: int, guide: Guide | None) -> SamplingParams:
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
        min_p=body.min_p,
        logit_bias=body.bias,
        logprobs=body.logprob_count,
        prompt_logprobs=body.prompt_logprob_count,
        guide=guide,
        priority=body.priority,
    )
