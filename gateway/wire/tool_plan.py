"""ToolPlan: the tools that a request offers, and what of them must be called, whatever wire it came by."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core import Guide
from gateway.errors import InvalidRequest
from gateway.language import OPENINGS, Forced, ModelLanguage, Tool, ToolFormat, tool_guide


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that the model may call. `forced`: what it must call; None leaves it the choice."""

    definitions: tuple[Mapping[str, object], ...]
    """The tools as the model's template reads them."""
    tools: tuple[Tool, ...]
    forced: Forced | None
    parallel: bool

    def opening(self, tool_format: ToolFormat | None) -> str:
        """What a model of this format writes before a call that it has to make."""
        return "" if self.forced is None else OPENINGS.get(tool_format, "")

    def guide(self, tool_format: ToolFormat | None) -> Guide | None:
        """Returns what follows the opening; None where nothing has to be called. Raises InvalidRequest."""
        return None if self.forced is None else tool_guide(self.tools, self.forced, tool_format, parallel=self.parallel)

    def check(self, language: ModelLanguage) -> None:
        """Raises InvalidRequest for a model whose template shows no tools, or whose calls could not be recognised."""
        if not language.takes_tools:
            reason = "'tools' are not supported by this model: its chat template shows it none."
            raise InvalidRequest(reason, param="tools")
        if self.forced is None and language.tool_format is None:
            reason = "'tools' are only supported by this model when a call is required or names a function."
            raise InvalidRequest(reason, param="tools")


def describe_tool(name: str, description: str | None, parameters: object, strict: bool | None) -> Mapping[str, object]:
    """Returns every field but an absent `strict`, in this order, as vLLM's chat templates get them."""
    function: dict[str, object] = {"name": name, "description": description, "parameters": parameters}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}
