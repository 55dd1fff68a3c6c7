"""Body: what a body of any wire says of the generations that it asks for.

Every field of a wire is honoured, has no effect by nature, or is refused by name; none is dropped.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field, model_validator

from gateway.core import NO_NEEDS, Guide, Need, Needs, Prompt, SamplingParams
from gateway.language import ModelLanguage
from gateway.wire.answer import Fork, Parsing, Presenter
from gateway.wire.fields import NonEmpty, WireModel
from gateway.wire.keeper import Keeper
from gateway.wire.parse import Unknown, read_model, validate
from gateway.wire.tool_plan import ToolPlan

AnyBody = TypeVar("AnyBody", bound="Body")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a request has beside its body. `created` is in Unix seconds. `reasoning_field`: of a chat's messages.

    `keeper`: where answers are kept for later requests.
    """

    request_id: str
    created: int
    pin: str | None = None
    run: str | None = None
    reasoning_field: str = "reasoning"
    keeper: Keeper | None = None


class Body(WireModel):
    """A body that asks for one generation, or several of the same kind.

    `prompt_field`: the field that its prompt is made of. `relay_field`: the field for which the body goes on as it
    came; None if the body has been read.
    """

    prompt_field: ClassVar[str]
    is_chat: ClassVar[bool] = True
    relay_field: ClassVar[str | None] = None  # of a body, not of a class, but no field that a client may send

    model: NonEmpty
    stream: bool = False

    # vLLM's extension
    cache_salt: Annotated[NonEmpty, Field(max_length=1024)] | None = None

    @classmethod
    def find_relay_field(cls, document: dict[str, object]) -> str | None:
        """Returns the first field, as a path, that only the relay lane can serve. The body is not validated yet."""
        return None

    @classmethod
    def unread(cls, model: str, relay_field: str) -> Self:
        """Returns a body that goes on as it came, of which nothing else is known."""
        body = cls.model_construct(model=model)
        object.__setattr__(body, "relay_field", relay_field)  # pydantic would take it for a field
        return body

    @model_validator(mode="after")
    def _plan_tools(self) -> Self:
        self.tool_plan  # noqa: B018 - here, where what is wrong with tools is found before a model is looked for
        return self

    def resolve(self, keeper: Keeper | None) -> Self:
        """Returns the body with what it only refers to. Raises InvalidRequest and ResponseNotFound."""
        return self

    @property
    def choices(self) -> int:
        """How many answers to each prompt."""
        return 1

    @property
    @abstractmethod
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value if the client gave one."""

    @abstractmethod
    def sampling(self, max_tokens: int, guide: Guide | None) -> SamplingParams:
        """Returns how tokens are chosen, `max_tokens` being what fits. Raises InvalidRequest."""

    def check(self, language: ModelLanguage) -> None:
        """Makes the checks that take more than one field, or the model. Raises InvalidRequest."""

    @cached_property
    def tool_plan(self) -> ToolPlan | None:
        return None

    @cached_property
    def text_guide(self) -> Guide | None:
        """What the client wants the text to match."""
        return None

    @property
    def text_guide_field(self) -> str:
        return ""

    @property
    def is_forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_plan is not None and self.tool_plan.forced is not None

    @property
    def is_guided(self) -> bool:
        """Whether the engine holds the answer to a form, at least where it is no call."""
        return self.is_forced or self.text_guide is not None

    def find_guide(self, language: ModelLanguage) -> Guide | None:
        """Returns what the engine holds the answer to from its beginning. Raises InvalidRequest."""
        plan, text = self.tool_plan, self.text_guide
        if plan is None:
            return text
        if plan.forced is not None or text is None:
            return plan.guide(language.tool_format)
        return plan.guide_beside(text, language.tool_format, self.text_guide_field)

    def find_fork(self, language: ModelLanguage) -> Fork | None:
        """Returns what an answer is held to that begins with no call."""
        plan, text = self.tool_plan, self.text_guide
        return None if plan is None or text is None else plan.find_fork(text, language.tool_format)

    @property
    def guide_field(self) -> str:
        """The field that the guide comes from."""
        return "tool_choice" if self.is_forced else self.text_guide_field

    def opening(self, language: ModelLanguage) -> str:
        """What an answer is given to begin with. Raises InvalidRequest for tools that the model cannot be offered."""
        plan = self.tool_plan
        if plan is None:
            return ""
        plan.check(language)
        return plan.opening(language.tool_format)

    @property
    def ends_reasoning(self) -> bool:
        """Whether reasoning that a template has begun is ended in the prompt, because the answer may be a call."""
        return self.tool_plan is not None and self.is_guided

    def needs(self) -> Needs:
        """Returns what only some backends can do, with the field that asks for it; a neutral value is no need."""
        if self.relay_field is not None:
            return {Need.RELAY: self.relay_field}
        asked = {**self.sampling_needs()}
        if self.is_guided:
            asked[Need.GUIDE] = self.guide_field
        if self.cache_salt is not None:
            asked[Need.CACHE_SALT] = "cache_salt"
        return asked or NO_NEEDS

    def sampling_needs(self) -> Mapping[Need, str]:
        """Returns those of `needs` that come from how tokens are chosen and shown."""
        return {}

    @abstractmethod
    def prompts(self, language: ModelLanguage) -> Sequence[Prompt]:
        """Returns each prompt's token ids, in order. Raises InvalidRequest."""

    @abstractmethod
    def presenter(self, language: ModelLanguage, envelope: Envelope, prompts: Sequence[Prompt]) -> Presenter: ...

    def parsing(self, language: ModelLanguage, prompt: Prompt) -> Parsing | None:
        """Returns None where an answer is nothing but its text. What a guide binds has no reasoning before it."""
        plan = self.tool_plan
        reasons = self.is_chat and language.reasons and not self.is_guided
        if plan is None and not reasons:
            return None
        return Parsing(
            tool_format=None if plan is None else language.tool_format,
            forced=None if plan is None else plan.forced,
            reasons=reasons,
            starts_in_reasoning=reasons and language.starts_in_reasoning(prompt),
            is_one_call=plan is not None and not plan.parallel,
        )


def parse_body(body_type: type[AnyBody], document: dict[str, object], unknown: Unknown = "refuse") -> AnyBody:
    """Parses a body. One for the relay lane alone is read no further and goes on as it is. Raises InvalidRequest."""
    field = body_type.find_relay_field(document)
    if field is not None:
        return body_type.unread(read_model(document), field)
    return validate(body_type, document, unknown)
