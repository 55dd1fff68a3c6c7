"""Habits: how a model writes what is not plain content, told by its chat template or by the settings.

A template's source comes in; knows no parser.
"""

from dataclasses import dataclass

from gateway.language.tool_formats import ToolFormat, find_reasoning, find_tool_format

AUTO, NONE = "auto", "none"  # the settings' words; the others are a ToolFormat, and "think"


@dataclass(frozen=True, slots=True)
class Habits:
    """`tool_format`: None where nobody knows how the model calls tools.

    `reasons`: its answers may begin with reasoning.
    """

    tool_format: ToolFormat | None = None
    reasons: bool = False


def find_habits(template: str, tool_parser: str, reasoning_parser: str) -> Habits:
    if tool_parser == AUTO:
        tool_format = find_tool_format(template)
    else:
        tool_format = None if tool_parser == NONE else ToolFormat(tool_parser)
    return Habits(tool_format, find_reasoning(template) if reasoning_parser == AUTO else reasoning_parser != NONE)
