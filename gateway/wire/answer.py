"""What presents an answer, whatever its wire: the frames and the decoder of each choice, and what choices share.

Knows no wire, HTTP or time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.core import FinishReason, GenerateRequest, Guide
from gateway.errors import GatewayError
from gateway.language import (
    CallArguments,
    CallStart,
    Content,
    Forced,
    ModelLanguage,
    Part,
    ReplyParser,
    ToolFormat,
    make_parser,
)  # fmt: skip
from gateway.wire.logprobs import Details


class Decoder(Protocol):
    """A language.TextDecoder, or a pipe before one."""

    @property
    def stopped(self) -> bool: ...
    @property
    def completion_tokens(self) -> int: ...

    def feed(self, token_ids: Sequence[int]) -> str: ...

    def flush(self) -> str: ...


class Frames(Protocol):
    """A pipe from one choice's text to bytes; b"" where nothing is to be sent yet. Call `open`, `text`s, then `close`.

    `close` of the last choice also returns what ends the whole answer.
    """

    content_type: bytes

    def open(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def close(self, reason: FinishReason, completion_tokens: int) -> bytes: ...

    def fail(self, error: GatewayError) -> bytes:
        """Returns what ends a stream that failed. Called instead of `close`, and for streams only."""
        ...


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


class ChoiceGroup:
    """What the choices of one answer share: how many are still open, and what they used."""

    def __init__(self, choices: int, prompt_tokens: int) -> None:
        self.choices = choices
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self._open = choices
        self._whole = [b""] * choices

    def close(self, completion_tokens: int) -> Usage | None:
        """Counts one more complete choice. Returns what all of them used once all are complete, None before."""
        self.completion_tokens += completion_tokens
        self._open -= 1
        return None if self._open else Usage(self.prompt_tokens, self.completion_tokens)

    def keep(self, index: int, choice: bytes) -> None:
        self._whole[index] = choice

    def whole(self) -> bytes:
        return b",".join(self._whole)


@dataclass(frozen=True, slots=True)
class Place:
    """One choice among those of its answer."""

    index: int
    group: ChoiceGroup


class Fork(NamedTuple):
    """How an answer that may be a call is held to a form if it is none.

    The model begins as it will: an answer with `opening` goes on, any other begins again, held to `guide`.
    """

    opening: str
    guide: Guide


class ChoiceParts(NamedTuple):
    """What one attempt at one choice works with; details only where the client asked for some."""

    decoder: Decoder
    frames: Frames
    details: Details | None = None


class Presenter(Protocol):
    """How the client wants to see an answer."""

    @property
    def stream(self) -> bool: ...

    def choice(self, language: ModelLanguage, request: GenerateRequest, place: Place) -> ChoiceParts:
        """Returns the parts of one choice, made afresh for each attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Parsing:
    """What to look for in a chat's text: calls as this model writes them, those that a guide `forced`, reasoning.

    `is_one_call`: only the first call is shown.
    """

    tool_format: ToolFormat | None
    forced: Forced | None
    reasons: bool
    starts_in_reasoning: bool
    is_one_call: bool

    @property
    def may_call(self) -> bool:
        return self.forced is not None or self.tool_format is not None

    def parser(self) -> ReplyParser:
        parser = make_parser(
            self.tool_format,
            forced=self.forced,
            reasoning=self.reasons,
            starts_in_reasoning=self.starts_in_reasoning,
        )
        return FirstCall(parser) if self.is_one_call else parser


NO_PARTS: Sequence[Part] = ()


def feed(parser: ReplyParser | None, text: str) -> Sequence[Part]:
    """Returns the parts that are certain now; without a parser all text is content."""
    if parser is not None:
        return parser.feed(text)
    return (Content(text),) if text else NO_PARTS


def flush(parser: ReplyParser | None) -> Sequence[Part]:
    return NO_PARTS if parser is None else parser.flush()


class FirstCall:
    """A ReplyParser without the calls after the first one, which were not to be made beside it.

    A model that is free to call cannot be held to that.
    """

    __slots__ = ("_parser",)

    def __init__(self, parser: ReplyParser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Part]:
        return _drop_later_calls(self._parser.feed(text))

    def flush(self) -> list[Part]:
        return _drop_later_calls(self._parser.flush())

    @property
    def has_called(self) -> bool:
        return self._parser.has_called


def _drop_later_calls(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, CallStart | CallArguments) or part.index == 0]
