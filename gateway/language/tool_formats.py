"""The formats in which models write tool calls: the signs of each in a chat template, its markers, and its call ids.

A chat template's source comes in: a model writes its calls as its template writes the calls of earlier turns. Knows no
parsing.
"""

import secrets
import string
from enum import StrEnum

HERMES_START, HERMES_END = "<tool_call>", "</tool_call>"
LLAMA_TAG = "<|python_tag|>"
MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

# Qwen3-Coder and GLM put their calls between Hermes' tags too, but do not write them in JSON.
_NOT_HERMES = ("<function=", "<arg_key>")

_ALPHANUMERIC = string.ascii_letters + string.digits


class ToolFormat(StrEnum):
    """The names are those of vLLM's parsers (`--tool-call-parser`)."""

    HERMES = "hermes"  # Hermes 2 and 3, Qwen 2.5 and 3
    LLAMA3_JSON = "llama3_json"  # Llama 3.1 to 3.3
    MISTRAL = "mistral"  # the JSON array of tokenizers before v11, and the form since then

    @property
    def markers(self) -> tuple[str, ...]:
        """Strings that have to stay visible in an answer's text: in some vocabularies they are special tokens."""
        return _MARKERS[self]


_MARKERS = {
    ToolFormat.HERMES: (HERMES_START, HERMES_END),
    ToolFormat.LLAMA3_JSON: (LLAMA_TAG,),
    ToolFormat.MISTRAL: (MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS),
}


def find_tool_format(template_source: str) -> ToolFormat | None:
    """Returns None where the template has no calls, or calls in another format."""
    if MISTRAL_CALLS in template_source:
        return ToolFormat.MISTRAL
    if HERMES_START in template_source:
        return None if any(mark in template_source for mark in _NOT_HERMES) else ToolFormat.HERMES
    # LLAMA_TAG is no sign: it is for the built-in tools of the large models, and templates of small models lack it.
    is_llama = "<|start_header_id|>" in template_source and '"parameters"' in template_source
    return ToolFormat.LLAMA3_JSON if is_llama else None


def new_call_id(tool_format: ToolFormat | None) -> str:
    if tool_format is ToolFormat.MISTRAL:
        # Mistral's templates refuse a next turn whose call ids are not nine alphanumerics.
        return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"
