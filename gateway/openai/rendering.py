"""What decides how the messages of a chat become one text: the fields that chats and /tokenize share.

Knows vLLM's extensions to OpenAI's chat; not templates.
"""

from pydantic import ValidationInfo, field_validator

from gateway.language import Rendering
from gateway.openai.messages import Messages
from gateway.openai.tools import Definitions
from gateway.wire.fields import WireModel, refusal
from gateway.wire.rendering import Variables
from gateway.wire.tool_plan import ToolPlan


class RenderedChat(WireModel):
    """The fields that decide how a chat becomes one text."""

    messages: Messages
    tools: Definitions | None = None

    # vLLM's extensions
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    add_special_tokens: bool = False
    chat_template_kwargs: Variables | None = None

    @field_validator("tools", mode="before")
    @classmethod
    def _drop_no_tools(cls, tools: object) -> object:
        return None if tools == [] else tools  # as clients send it that always send the field

    @field_validator("add_generation_prompt")
    @classmethod
    def _prompt_or_continue(cls, adds: bool, info: ValidationInfo) -> bool:
        if adds and info.data.get("continue_final_message"):
            raise refusal("must not be true together with 'continue_final_message'")
        return adds

    @property
    def ends_with_header(self) -> bool:
        """Whether the prompt ends with what begins an assistant's message: the default, unless one is continued."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def rendering(
        self, plan: ToolPlan | None, variables: dict[str, object], opening: str = "", *, ends_reasoning: bool = False
    ) -> Rendering:
        return Rendering(
            tools=None if plan is None else plan.definitions,
            add_generation_prompt=self.ends_with_header,
            continue_final_message=self.continue_final_message,
            variables=variables,
            ends_reasoning=ends_reasoning,
            opening=opening,
        )
