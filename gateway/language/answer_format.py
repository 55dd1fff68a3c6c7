"""AnswerFormat: how a model writes tool calls and reasoning, from its chat template or from the settings.

A template's source comes in. Knows no parser.
"""

from dataclasses import dataclass

from gateway.language.reasoning import REASONING_MARKERS
from gateway.language.tool_formats import ToolFormat, find_tool_format

AUTO, NONE = "auto", "none"  # the settings' words beside a ToolFormat and "think"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How a model writes an answer. `tool_format`: None where the format of the model's tool calls is not known.

    `reasons`: its answers may begin with reasoning.
    """

    tool_format: ToolFormat | None = None
    reasons: bool = False


def find_answer_format(template: str, tool_parser: str, reasoning_parser: str) -> AnswerFormat:
    """Returns a model's format. `tool_parser`, `reasoning_parser`: as in the settings; AUTO looks into the template."""
    if tool_parser == AUTO:
        tool_format = find_tool_format(template)
    else:
        tool_format = None if tool_parser == NONE else ToolFormat(tool_parser)
    return AnswerFormat(tool_format, has_reasoning(template) if reasoning_parser == AUTO else reasoning_parser != NONE)


def has_reasoning(template: str) -> bool:
    """Returns whether answers of the model with this chat template may begin with reasoning."""
    return any(marker in template for marker in REASONING_MARKERS)
