"""The ways in which models write tool calls: what each is known by, its markers, and how its calls are named.

A chat template's source comes in: a model writes calls as its template writes those of earlier turns. Knows no parsing.
"""

import secrets
import string
from enum import StrEnum

from gateway.language.reasoning import REASONING_END, REASONING_START

HERMES_START, HERMES_END = "<tool_call>", "</tool_call>"
LLAMA_TAG = "<|python_tag|>"
MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

# Formats of other families, whose calls are also between Hermes' tags: Qwen3-Coder's and GLM's are no JSON.
_OTHER_CALLS = ("<function=", "<arg_key>")

_ALPHANUMERIC = string.ascii_letters + string.digits


class ToolFormat(StrEnum):
    """Named as vLLM's parsers are (`--tool-call-parser`)."""

    HERMES = "hermes"  # Hermes 2 and 3, Qwen 2.5 and 3
    LLAMA3_JSON = "llama3_json"  # Llama 3.1 to 3.3
    MISTRAL = "mistral"  # both the JSON array of tokenizers before v11 and what came after

    @property
    def markers(self) -> tuple[str, ...]:
        """What has to stay visible in an answer's text: in some vocabularies these are special tokens."""
        return _MARKERS[self]


_MARKERS = {
    ToolFormat.HERMES: (HERMES_START, HERMES_END),
    ToolFormat.LLAMA3_JSON: (LLAMA_TAG,),
    ToolFormat.MISTRAL: (MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS),
}


def find_tool_format(template_source: str) -> ToolFormat | None:
    """None where the template has no calls, or calls in another format."""
    if MISTRAL_CALLS in template_source:
        return ToolFormat.MISTRAL
    if HERMES_START in template_source:
        return None if any(mark in template_source for mark in _OTHER_CALLS) else ToolFormat.HERMES
    # Not by the tag: it is for the built-in tools of the large models, the templates of the small ones have none.
    is_llama = "<|start_header_id|>" in template_source and '"parameters"' in template_source
    return ToolFormat.LLAMA3_JSON if is_llama else None


def find_reasoning(template_source: str) -> bool:
    """Whether the model's answers may begin with reasoning."""
    return REASONING_START in template_source or REASONING_END in template_source


def new_call_id(tool_format: ToolFormat | None) -> str:
    if tool_format is ToolFormat.MISTRAL:
        # Nine alphanumerics, or Mistral's templates refuse the next turn.
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"
