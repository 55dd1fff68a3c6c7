"""One interface over the official clients: a question in, the answer as the client read it out.

Each client uses its own means for it (its types, its stream, its tool loop, its errors): those are what is tested.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel

from deploy.stacks import MODEL

Message: TypeAlias = dict[str, Any]  # JSON


# What a client speaks; its errors are of that form, and its words for an answer's end.
CHAT, RESPONSES, MESSAGES = "chat", "responses", "messages"
CONVERSING = ("openai-python", "openai-python-responses", "anthropic-python", "anthropic-node")


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway, and the backend that must answer."""

    url: str
    pin: str


class City(BaseModel):
    """What a structured answer is read into; in node/question.mjs again."""

    country: str
    capital: str


@dataclass(frozen=True, slots=True)
class Question:
    """`choice`: one of OpenAI's words, or a tool's name. `parallel`: whether an answer may hold more than one call.

    `weather`: what the tool get_weather returns for each city. `as_city`: the answer is to be a City, by its schema.
    `counts`: the client counts the prompt's tokens before, if its API has a request for that. `thinks`: by Messages,
    the model may think. `then`: what the user asks once the answer has gone back as it came, by the clients CONVERSING.
    """

    messages: Sequence[Message]
    stream: bool = False
    tools: Sequence[Message] = ()
    choice: str | None = None
    parallel: bool | None = None
    weather: Mapping[str, str] | None = None
    as_city: bool = False
    counts: bool = False
    model: str = MODEL
    temperature: float = 0.0
    max_tokens: int | None = None
    retries: int = 0
    thinks: bool = False
    then: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: object  # JSON


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client read, over as many requests as its tool loop made; tokens are those of the last one.

    `finish_reasons`: in a chat's words. `pieces`: the text as it came, one piece where it was not streamed. `city`: the
    structured answer as JSON. `counted`: how many tokens the last prompt has, as the client asked before.
    `thoughts`: by the clients CONVERSING.
    """

    pieces: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int
    calls: tuple[ToolCall, ...] = ()
    city: object = None
    counted: int | None = None
    thoughts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Refused(Exception):
    """An error as the client raised it: the name of its class, and the fields of the gateway's error object."""

    def __init__(self, error: str, status: int | None, code: str | None, param: str | None, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.status = status
        self.code = code
        self.param = param
        self.message = message

    def __repr__(self) -> str:
        return f"<Refused {self.error} {self.status} {self.code} {self.param}: {self.message}>"


class Client(Protocol):
    """`wire`: what it speaks."""

    @property
    def wire(self) -> str: ...

    def ask(self, question: Question) -> Answer:
        """Raises Refused."""
        ...

    def close(self) -> None: ...
