"""The chat template: OpenAI messages in, the prompt's text out.

The template always comes from the model's directory and never from a client. Knows nothing of token ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from jinja2 import Template, TemplateError

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message: TypeAlias = Mapping[str, object]  # of plain JSON values only: a template may call methods of its values

# Errors that a sandboxed template raises when a message has a shape that its author did not think of.
_WRONG_SHAPE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

# The names of a message's reasoning; templates read the first name before the others.
_REASONING = ("reasoning_content", "thinking", "reasoning")

# transformers' own mark: added to the end of the message to continue, it shows where the template puts that end.
_END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "

_SAMPLE: Sequence[Message] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]
_LATE_SYSTEM: Sequence[Message] = [
    {"role": "system", "content": "Hello"},
    {"role": "user", "content": "Hi"},
    {"role": "system", "content": "Hello"},
    {"role": "user", "content": "Hi"},
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
    """How a chat becomes one text. `tools`: in OpenAI's form. `variables`: further variables for the template.

    `add_generation_prompt`: the text ends with the beginning of an assistant's message. `continue_final_message`: the
    text ends inside the last message instead, and the model continues it. `ends_reasoning`: reasoning that the template
    has begun is ended. `opening`: what the answer begins with.
    """

    tools: Sequence[Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    ends_reasoning: bool = False
    opening: str = ""


DEFAULT_RENDERING = Rendering()


class ChatTemplate:
    """transformers' `apply_chat_template` without the work it repeats for every chat, which is two thirds of its time.

    `source`: the source of the template for chats with tools; "" without a template. `takes_tools`: whether tools
    change the rendered text: a template that ignores tools raises no error. `takes_late_system`: whether a system's
    message may come in the middle of a chat.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Raises `jinja2.TemplateSyntaxError` for a template that does not compile."""
        plain, with_tools = (
            _find_template_source(tokenizer, "default"),
            _find_template_source(tokenizer, "tool_use", "default"),
        )
        self.source = with_tools or ""
        self._plain = _compile(plain) if plain else None
        self._with_tools = _compile(with_tools) if with_tools else None
        # bos_token and so on, under the names that templates use; a plain dict, merged into every prompt's variables.
        self._names: Mapping[str, str] = dict(tokenizer.special_tokens_map)
        self._knows_developer = any(f"{quote}developer{quote}" in self.source for quote in "\"'")
        self.takes_late_system = bool(self._sample(DEFAULT_RENDERING, _LATE_SYSTEM))
        self.takes_tools = self._sample(Rendering(tools=[_SAMPLE_TOOL])) not in {"", self.sample()}

    def render(self, messages: Sequence[Message], rendering: Rendering = DEFAULT_RENDERING) -> str:
        """Renders a chat. Raises `InvalidRequest(param="messages")`, with the template's own message if it refuses."""
        if not messages:
            raise InvalidRequest("messages: at least one message is needed.", param="messages")
        chat = [self._flatten(message, index) for index, message in enumerate(messages)]
        if not rendering.continue_final_message:
            return self._render(chat, rendering)
        return _cut_at_mark(self._render([*chat[:-1], _mark_end(chat[-1])], rendering), chat[-1])

    def sample(self) -> str:
        """Returns a rendered chat of several turns; "" if the template refuses an ordinary chat."""
        return self._sample(DEFAULT_RENDERING)

    def _sample(self, rendering: Rendering, messages: Sequence[Message] = _SAMPLE) -> str:
        try:
            return self.render(messages, rendering)
        except InvalidRequest:
            return ""

    def _render(self, chat: Sequence[Message], rendering: Rendering) -> str:
        template = self._plain if rendering.tools is None else self._with_tools
        if template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        try:
            return template.render(
                {**self._names, **rendering.variables},
                messages=chat,
                tools=rendering.tools,
                documents=None,
                add_generation_prompt=rendering.add_generation_prompt,
            )
        except TemplateError as exc:
            raise InvalidRequest(f"The model's chat template refuses these messages: {exc}", param="messages") from exc
        except _WRONG_SHAPE as exc:  # its text may quote the prompt, so only the type is shown
            reason = f"The model's chat template cannot render these messages ({type(exc).__name__})."
            raise InvalidRequest(reason, param="messages") from exc

    def _flatten(self, message: Message, index: int) -> Message:
        """Returns the message for the template: without nulls, text instead of parts, reasoning under all its names.

        `developer` is OpenAI's newer name of the role `system`, which every template knows.
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


def _find_template_source(tokenizer: "PreTrainedTokenizerFast", *names: str) -> str | None:
    """Returns the tokenizer's template; where it has several, the first of `names` that exists."""
    templates: object = tokenizer.chat_template
    found = [templates.get(name) for name in names] if isinstance(templates, dict) else [templates]
    return next((source for source in found if isinstance(source, str)), None)


def _compile(source: str) -> Template:
    """Compiles in transformers' sandbox, with the functions and filters that templates are written for."""
    # vLLM imports this private name too: there is no public one. The import takes a second.
    from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: PLC0415 - see above

    compiled: Template = _compile_jinja_template(source)
    return compiled


def _mark_end(message: Message) -> Message:
    return {**message, "content": f"{message['content']}{_END_MARK}"}


def _cut_at_mark(text: str, last: Message) -> str:
    """Cuts a rendered chat at the end of its last message's content. Raises `InvalidRequest(param="messages")`."""
    mark = _END_MARK.strip()
    end = text.rfind(mark)
    if end < 0 or str(last["content"]).strip() not in text:
        raise InvalidRequest("The model's chat template does not let the last message be continued.", param="messages")
    # A template that trims the content removes the mark's space, and would have removed the content's own.
    return text[:end] if text.startswith(_END_MARK, end) else text[:end].rstrip()


def _text_of(message: Message, where: str) -> str:
    """Returns a message's content as one string; joins parts by newlines, as vLLM does for templates of strings."""
    match message.get("content"):
        case str(text):
            return text
        case None if message.get("role") == "assistant":
            return ""  # a message that only calls tools
        case list(parts):
            return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))
    raise InvalidRequest(f"{where}: expected a string or a list of text parts.", param="messages")


def _part_text(part: object, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise InvalidRequest(f"{where}: only parts of type text can be rendered.", param="messages")
