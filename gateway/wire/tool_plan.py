"""ToolPlan: the tools that a request offers, and what of them must be called, whatever wire it came by."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core import Guide, GuideKind
from gateway.errors import InvalidRequest
from gateway.language import OPENINGS, Forced, ModelLanguage, Tool, ToolFormat, call_or_text_guide, tool_guide
from gateway.wire.answer import Fork


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

    def guide_beside(self, text: Guide, tool_format: ToolFormat | None, field: str) -> Guide | None:
        """Returns what holds an answer to a call or else to `text`; None where a Fork has to do it.

        Raises InvalidRequest for a form of `field` that cannot be told from a call.
        """
        if tool_format is not ToolFormat.LLAMA3_JSON:
            return None
        if text.kind not in {GuideKind.JSON, GuideKind.JSON_SCHEMA}:
            raise InvalidRequest(f"'{field}' beside 'tools' has to be JSON with this model.", param=field)
        return call_or_text_guide(self.tools, text)

    def find_fork(self, text: Guide, tool_format: ToolFormat | None) -> Fork | None:
        if self.forced is not None or tool_format not in OPENINGS:
            return None
        return Fork(OPENINGS[tool_format].strip(), text)

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
