"""A parsed body in, Generations out: what the engines shall generate, and how the client wants to see it.

The wire -> core translation: after it, every value is valid and fits the model's context. Knows no JSON and no HTTP.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.core import GenerateRequest, Guide, Prompt, SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.wire.answer import ChoiceGroup, ChoiceParts, Fork, Place, Presenter
from gateway.wire.body import Body, Envelope

GREEDY_BELOW = 1e-5
MIN_TEMPERATURE = 0.01
# Engines compile a form while their other requests wait: half a megabyte of it held the reference engine up for 5 s.
MAX_GUIDE_CHARACTERS = 65_536
INT64_END, UINT64_END = 2**63, 2**64


@dataclass(frozen=True, slots=True)
class Generations:
    """What one request asks for: a generation for each choice, in the order of their index.

    What an attempt needs is made afresh for each. `prompt_tokens`: of all prompts, each counted once. `fork`: what
    each choice is held to that begins with no call.
    """

    requests: tuple[GenerateRequest, ...]
    language: ModelLanguage
    presenter: Presenter
    prompt_tokens: int
    fork: Fork | None = None

    @property
    def guided(self) -> GenerateRequest | None:
        """The request as it is held to a form, if it may be."""
        if self.fork is not None:
            return hold(self.request, self.fork.guide)
        return None if self.request.params.guide is None else self.request

    @property
    def request(self) -> GenerateRequest:
        """The request that is placed, for all of them."""
        return self.requests[0]

    def group(self) -> ChoiceGroup:
        return ChoiceGroup(len(self.requests), self.prompt_tokens)

    def choice(self, index: int, group: ChoiceGroup) -> ChoiceParts:
        return self.presenter.choice(self.language, self.requests[index], Place(index, group))


def translate(body: Body, language: ModelLanguage, envelope: Envelope) -> Generations:
    """Translates a body. Raises InvalidRequest and ContextLengthExceeded, which name the field."""
    guide, fork = body.find_guide(language), body.find_fork(language)
    body.check(language)
    for form in (guide, None if fork is None else fork.guide):
        if form is not None:
            _check_guide(form, body.guide_field, language)
    prompts = body.prompts(language)
    return Generations(
        requests=tuple(_requests(body, language, envelope, prompts, guide)),
        language=language,
        presenter=body.presenter(language, envelope, prompts),
        prompt_tokens=sum(map(len, prompts)),
        fork=fork,
    )


def hold(request: GenerateRequest, guide: Guide) -> GenerateRequest:
    return replace(request, params=replace(request.params, guide=guide))


def _requests(
    body: Body, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt], guide: Guide | None
) -> Iterator[GenerateRequest]:
    """Yields the choices of each prompt in turn, as OpenAI numbers them."""
    needs, sequences = body.needs(), len(prompts) * body.choices
    for place, prompt in enumerate(prompts):
        limit = language.fit(prompt, body.token_limit[1], prompt_param=body.prompt_field)
        params = _settle(body.sampling(limit, guide))
        for choice in range(body.choices):
            index = place * body.choices + choice
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


def _check_guide(guide: Guide, field: str, language: ModelLanguage) -> None:
    if len(guide.text) > MAX_GUIDE_CHARACTERS:
        reason = f"'{field}' makes a form of more than {MAX_GUIDE_CHARACTERS} characters."
        raise InvalidRequest(reason, param=field)
    if (own := language.find_own_token(guide)) is not None:
        reason = f"'{field}' asks for the text {own!r}, which is one token of this model's own markup."
        raise InvalidRequest(reason, param=field)


def _settle(params: SamplingParams) -> SamplingParams:
    """Makes a temperature below 1e-5 greedy and others at least 0.01, as vLLM does; TensorRT-LLM would divide by it."""
    if params.temperature < GREEDY_BELOW:
        return params if params.temperature == 0.0 else replace(params, temperature=0.0)
    return params if params.temperature >= MIN_TEMPERATURE else replace(params, temperature=MIN_TEMPERATURE)


def _reseed(params: SamplingParams, choice: int) -> SamplingParams:
    """Returns another choice's params: the seed counts up, as in vLLM and TensorRT-LLM, and wraps around."""
    if params.seed is None:
        return params
    return replace(params, seed=(params.seed + choice + INT64_END) % UINT64_END - INT64_END)
