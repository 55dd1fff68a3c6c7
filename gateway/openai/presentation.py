"""How a client wants to see an answer, and the parts that present one choice of it.

In: what a request asked for. Out: decoder, frames and details for each choice of an attempt. Knows no body and no HTTP.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gateway.core import GenerateRequest, Prompt
from gateway.language import Forced, ModelLanguage, ReplyParser, TextDecoder, ToolFormat, make_parser
from gateway.openai.choice import Decoder, NotingDecoder
from gateway.openai.frames import CHAT, AnswerHead, ChoiceGroup, DetailedStream, Extras, Fold, Frames, Stream, Usage
from gateway.openai.logprobs import ChatScores, Details, TextScores


@dataclass(frozen=True, slots=True)
class Place:
    """One choice among those of its answer. `echo`: what is shown of its prompt."""

    index: int
    group: ChoiceGroup
    echo: str = ""


class ChoiceParts(NamedTuple):
    """What one attempt at one choice works with; details only where the client asked for some."""

    decoder: Decoder
    frames: Frames
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class Parsing:
    """What to look for in a chat's text: calls as this model writes them, those that a guide `forced`, reasoning."""

    tool_format: ToolFormat | None
    forced: Forced | None
    reasons: bool
    starts_in_reasoning: bool
    is_one_call: bool

    @property
    def may_call(self) -> bool:
        return self.forced is not None or self.tool_format is not None

    @property
    def names_calls(self) -> bool:
        """Whether calls end with `tool_calls`. As in OpenAI and vLLM, a forced named call ends with `stop` instead."""
        return self.forced is None or self.forced.name is None

    def parser(self) -> ReplyParser:
        return make_parser(
            self.tool_format,
            forced=self.forced,
            reasoning=self.reasons,
            starts_in_reasoning=self.starts_in_reasoning,
        )


@dataclass(frozen=True, slots=True)
class Presentation:
    """How the client wants to see an answer. `reasoning`: the field for what a model thinks before it answers."""

    head: AnswerHead
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    logprobs: bool = False
    token_ids: bool = False
    echo: bool = False
    include_stop: bool = False
    shows_special: bool = False
    reasoning: bytes = b"reasoning"
    parsing: Parsing | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the client wants only the text as it is, with the usage of the whole answer."""
        return not (self.continuous_usage or self.logprobs or self.token_ids or self.echo or self.parsing)

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
            is_one_call=parsing is not None and parsing.is_one_call,
            names_calls=parsing is None or parsing.names_calls,
            may_call=parsing is not None and parsing.may_call,
            reasoning=self.reasoning,
            echo=place.echo,
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
            prompt_left=len(prompt) if self.echo and self.logprobs else 0,
        )
