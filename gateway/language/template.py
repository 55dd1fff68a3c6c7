"""The chat template: OpenAI messages in, the prompt's text out.

The template is the model's own and never a client's. Knows nothing of token ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from jinja2 import Template, TemplateError

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message: TypeAlias = Mapping[str, object]  # of plain JSON values: a template calls methods of what it is given

# What a sandboxed template meets when a message has a shape that its author did not think of.
_WRONG_SHAPE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

# By which names a message's reasoning is known, the one that templates read first.
_REASONING = ("reasoning_content", "thinking", "reasoning")

# transformers' own mark: put at the end of the message to continue, to see where a template puts that.
_OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG "

_SAMPLE: Sequence[Message] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]
_SAMPLE_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "sample_tool",
        "description": "Sample.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "Text."}}},
    },
}


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a chat becomes one text. `tools`: as OpenAI lists them. `variables`: what else its template may read.

    `add_generation_prompt`: end with what begins an assistant's message. `continue_final_message`: end inside the last
    message instead, for the model to continue it.
    """

    tools: Sequence[Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)


QUESTION = Rendering()


class ChatTemplate:
    """transformers' `apply_chat_template` without what it does again for every chat, two thirds of its time.

    `source`: what it was compiled from, for chats with tools; "" without a template. `takes_tools`: whether tools
    change what it renders, since one that ignores them gives no error.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Raises `jinja2.TemplateSyntaxError` for a template that does not compile."""
        plain, with_tools = _find_source(tokenizer, "default"), _find_source(tokenizer, "tool_use", "default")
        self.source = with_tools or ""
        self._plain = _compile(plain) if plain else None
        self._with_tools = _compile(with_tools) if with_tools else None
        # bos_token and so on, as templates know them; a plain dict, which every prompt is rendered with.
        self._names: Mapping[str, str] = dict(tokenizer.special_tokens_map)
        self._knows_developer = any(f"{quote}developer{quote}" in self.source for quote in "\"'")
        self.takes_tools = self._sample(Rendering(tools=[_SAMPLE_TOOL])) not in {"", self.sample()}

    def render(self, messages: Sequence[Message], how: Rendering = QUESTION) -> str:
        """Raises `InvalidRequest(param="messages")`, with the template's own words where it refuses them."""
        if not messages:
            raise InvalidRequest("messages: at least one message is needed.", param="messages")
        chat = [self._flatten(message, index) for index, message in enumerate(messages)]
        if not how.continue_final_message:
            return self._render(chat, how)
        return _cut(self._render([*chat[:-1], _leave_open(chat[-1])], how), chat[-1])

    def sample(self) -> str:
        """A rendered chat of several turns, "" from a template that refuses an ordinary one."""
        return self._sample(QUESTION)

    def _sample(self, how: Rendering) -> str:
        try:
            return self.render(_SAMPLE, how)
        except InvalidRequest:
            return ""

    def _render(self, chat: Sequence[Message], how: Rendering) -> str:
        template = self._plain if how.tools is None else self._with_tools
        if template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        try:
            return template.render(
                {**self._names, **how.variables},
                messages=chat,
                tools=how.tools,
                documents=None,
                add_generation_prompt=how.add_generation_prompt,
            )
        except TemplateError as exc:
            raise InvalidRequest(f"The model's chat template refuses these messages: {exc}", param="messages") from exc
        except _WRONG_SHAPE as exc:  # its text may quote the prompt, so only the type is shown
            reason = f"The model's chat template cannot render these messages ({type(exc).__name__})."
            raise InvalidRequest(reason, param="messages") from exc

    def _flatten(self, message: Message, index: int) -> Message:
        """What a template sees of a message: no nulls, text instead of parts, reasoning by all of its names.

        `developer` is OpenAI's newer word for `system`, which every template knows.
        """
        flat = {name: value for name, value in message.items() if value is not None}
        if flat.get("role") == "developer" and not self._knows_developer:
            flat["role"] = "system"
        if not isinstance(flat.get("content"), str):
            flat["content"] = _text_of(message, f"messages[{index}].content")
        if flat.keys().isdisjoint(_REASONING):
            return flat
        reasoning = next(flat[name] for name in _REASONING if name in flat)
        return {"thinking": reasoning, **flat, "reasoning_content": reasoning}


def _find_source(tokenizer: "PreTrainedTokenizerFast", *names: str) -> str | None:
    """Of a model that has several templates, the first that is there."""
    templates: object = tokenizer.chat_template
    found = [templates.get(name) for name in names] if isinstance(templates, dict) else [templates]
    return next((source for source in found if isinstance(source, str)), None)


def _compile(source: str) -> Template:
    """In transformers' sandbox, with the functions and filters that templates are written for."""
    # vLLM takes it from here too: there is no public name for it. The import takes a second.
    from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: PLC0415 - see above

    compiled: Template = _compile_jinja_template(source)
    return compiled


def _leave_open(message: Message) -> Message:
    return {**message, "content": f"{message['content']}{_OPEN_END}"}


def _cut(text: str, last: Message) -> str:
    """A rendered chat up to where its last message's content ends. Raises `InvalidRequest(param="messages")`."""
    mark = _OPEN_END.strip()
    end = text.rfind(mark)
    if end < 0 or str(last["content"]).strip() not in text:
        raise InvalidRequest("The model's chat template does not let the last message be continued.", param="messages")
    # A template that trims the content takes the mark's space, and would have taken the content's own.
    return text[:end] if text.startswith(_OPEN_END, end) else text[:end].rstrip()


def _text_of(message: Message, where: str) -> str:
    """A message's content as one string; parts are joined by newlines, as vLLM does for templates that take strings."""
    match message.get("content"):
        case str(text):
            return text
        case None if message.get("role") == "assistant":
            return ""  # an assistant that only called tools
        case list(parts):
            return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))
    raise InvalidRequest(f"{where}: expected a string or a list of text parts.", param="messages")


def _part_text(part: object, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise InvalidRequest(f"{where}: only parts of type text can be rendered.", param="messages")
