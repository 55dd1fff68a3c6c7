"""How a client wants to see an answer, and the parts that present one choice of it.

In: what a request asked for. Out: decoder, frames and details for each choice of an attempt. Knows no body and no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core import GenerateRequest, Prompt
from gateway.language import ModelLanguage, TextDecoder
from gateway.openai.frames import CHAT, AnswerHead, DetailedStream, Extras, Fold, Stream
from gateway.wire.answer import ChoiceParts, Frames, Parsing, Place, Usage
from gateway.wire.choice import NotingDecoder
from gateway.wire.logprobs import ChatScores, Details, TextScores


@dataclass(frozen=True, slots=True)
class Presentation:
    """The answer.Presenter of both completing endpoints.

    `echoes`: what is shown of each prompt, if anything is. `reasoning`: the field for what a model thinks first.
    """

    head: AnswerHead
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    echoes: Sequence[str] = ()
    include_stop: bool = False
    shows_special: bool = False
    reasoning: bytes = b"reasoning"
    parsing: Parsing | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the client wants only the text as it is, with the usage of the whole answer."""
        return not (self.continuous_usage or self.logprobs or self.token_ids or self.echoes or self.parsing)

    def choice(self, language: ModelLanguage, request: GenerateRequest, place: Place) -> ChoiceParts:
        """Returns the parts of one choice, made afresh for each attempt."""
        decoder = language.decoder(
            request,
            self.stop,
            include_stop=self.include_stop,
            shows_special=self.shows_special,
            shows_markers=self.parsing is not None,
        )
        if not self.is_plain:
            return self._detailed(language, request.prompt, decoder, place)
        index, group = place.index, place.group
        if self.stream:
            return ChoiceParts(decoder, Stream(self.head, index, group, include_usage=self.include_usage))
        return ChoiceParts(decoder, Fold(self.head, index, group))

    def _detailed(self, language: ModelLanguage, prompt: Prompt, decoder: TextDecoder, place: Place) -> ChoiceParts:
        index, group = place.index, place.group
        details, parsing = self._details(language, prompt), self.parsing
        extras = Extras(
            details,
            parser=None if parsing is None else parsing.parser(),
            # As in OpenAI and vLLM, a named call ends with `stop`.
            names_calls=parsing is None or parsing.forced is None or parsing.forced.name is None,
            may_call=parsing is not None and parsing.may_call,
            reasoning=self.reasoning,
            echo=self.echoes[index * len(self.echoes) // group.choices] if self.echoes else "",
            prompt_ids=prompt.token_ids if self.token_ids and self.head.dialect is CHAT else (),
            count=(lambda: Usage(len(prompt), decoder.completion_tokens)) if self.continuous_usage else None,
        )
        frames: Frames
        if self.stream:
            frames = DetailedStream(self.head, index, group, extras, include_usage=self.include_usage)
        else:
            frames = Fold(self.head, index, group, extras)
        return ChoiceParts(NotingDecoder(decoder, details), frames, details)

    def _details(self, language: ModelLanguage, prompt: Prompt) -> Details:
        is_chat, scores = self.head.dialect is CHAT, None
        if self.logprobs:
            scores = (ChatScores if is_chat else TextScores)(language.spell)
        return Details(
            scores,
            wants_ids=self.token_ids,
            prompt_ids=prompt.token_ids if self.token_ids and not is_chat else None,
            prompt_left=len(prompt) if self.echoes and self.logprobs else 0,
        )
