"""The chat template: OpenAI messages in, the prompt's text out.

The template is the model's own and never a client's. Knows nothing of token ids.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from jinja2 import TemplateError, TemplateSyntaxError

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, object]

# What a sandboxed template meets when a message has a shape that its author did not think of.
_WRONG_SHAPE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class ChatTemplate:
    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Raises `jinja2.TemplateSyntaxError` for a template that does not compile."""
        self._tokenizer = tokenizer
        self.exists = bool(tokenizer.chat_template)
        if self.exists:
            self._compile()

    def render(self, messages: Sequence[Message]) -> str:
        """Raises `InvalidRequest(param="messages")`, with the template's own words where it refuses them."""
        if not self.exists:
            raise InvalidRequest("This model has no chat template; use /v1/completions.", param="messages")
        if not messages:
            raise InvalidRequest("messages: at least one message is needed.", param="messages")
        flat = [_flatten(message, index) for index, message in enumerate(messages)]
        try:
            return self._apply(flat)
        except TemplateError as exc:
            raise InvalidRequest(f"The model's chat template refuses these messages: {exc}", param="messages") from exc
        except _WRONG_SHAPE as exc:  # its text may quote the prompt, so only the type is shown
            reason = f"The model's chat template cannot render these messages ({type(exc).__name__})."
            raise InvalidRequest(reason, param="messages") from exc

    def _apply(self, messages: Sequence[Message]) -> str:
        # Declared narrower than it is: contents other than strings, such as tool calls, are passed through.
        conversation = cast("list[dict[str, str]]", [dict(message) for message in messages])
        return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))

    def _compile(self) -> None:
        """Compile before the first request; transformers caches the result and offers no other way in."""
        try:
            self._apply([{"role": "user", "content": ""}])
        except TemplateSyntaxError:
            raise
        except (TemplateError, *_WRONG_SHAPE):
            pass  # a template may refuse this message and still be sound


def _flatten(message: Message, index: int) -> Message:
    return {**message, "content": _text_of(message, f"messages[{index}].content")}


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
