"""The chat template: OpenAI messages in, the prompt's text out.

The template is the model's own and never a client's. Knows nothing of token ids.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from jinja2 import Template, TemplateError

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message: TypeAlias = Mapping[str, object]  # of plain JSON values: a template calls methods of what it is given

# What a sandboxed template meets when a message has a shape that its author did not think of.
_WRONG_SHAPE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)

# By which names a message's reasoning is known, the one that templates read first.
_REASONING = ("reasoning_content", "thinking", "reasoning")

_SAMPLE: Sequence[Message] = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]


class ChatTemplate:
    """transformers' `apply_chat_template` without what it does again for every chat, two thirds of its time."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Raises `jinja2.TemplateSyntaxError` for a template that does not compile."""
        source = _find_source(tokenizer)
        self.exists = bool(source)
        self._template = _compile(source) if source else None
        self._names: Mapping[str, str] = tokenizer.special_tokens_map  # bos_token and so on, as templates know them

    def render(self, messages: Sequence[Message]) -> str:
        """Raises `InvalidRequest(param="messages")`, with the template's own words where it refuses them."""
        if self._template is None:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        if not messages:
            raise InvalidRequest("messages: at least one message is needed.", param="messages")
        chat = [_flatten(message, index) for index, message in enumerate(messages)]
        try:
            return self._template.render(
                self._names, messages=chat, tools=None, documents=None, add_generation_prompt=True
            )
        except TemplateError as exc:
            raise InvalidRequest(f"The model's chat template refuses these messages: {exc}", param="messages") from exc
        except _WRONG_SHAPE as exc:  # its text may quote the prompt, so only the type is shown
            reason = f"The model's chat template cannot render these messages ({type(exc).__name__})."
            raise InvalidRequest(reason, param="messages") from exc

    def sample(self) -> str:
        """A rendered chat of several turns, "" from a template that refuses an ordinary one."""
        try:
            return self.render(_SAMPLE)
        except InvalidRequest:
            return ""


def _find_source(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """The template for chats without tools, of a model that has several."""
    templates: object = tokenizer.chat_template
    source = templates.get("default") if isinstance(templates, dict) else templates
    return source if isinstance(source, str) else None


def _compile(source: str) -> Template:
    """In transformers' sandbox, with the functions and filters that templates are written for."""
    # vLLM takes it from here too: there is no public name for it. The import takes a second.
    from transformers.utils.chat_template_utils import _compile_jinja_template  # noqa: PLC0415 - see above

    compiled: Template = _compile_jinja_template(source)
    return compiled


def _flatten(message: Message, index: int) -> Message:
    """What a template sees of a message: no nulls, text instead of parts, reasoning by all of its names."""
    flat = {name: value for name, value in message.items() if value is not None}
    if not isinstance(flat.get("content"), str):
        flat["content"] = _text_of(message, f"messages[{index}].content")
    if flat.keys().isdisjoint(_REASONING):
        return flat
    reasoning = next(flat[name] for name in _REASONING if name in flat)
    return {"thinking": reasoning, **flat, "reasoning_content": reasoning}


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
