"""The variables that a request may set for a model's chat template, a vLLM extension of every wire."""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from gateway.wire.fields import JsonObject, refusal

# Template variables that the request sets by other fields, or may not set at all.
TAKEN = frozenset({
    "messages",
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
})


def _refuse_taken(variables: object) -> object:
    if isinstance(variables, dict) and (taken := TAKEN.intersection(variables)):
        raise refusal(f"must not hold {min(taken)!r}")
    return variables


Variables: TypeAlias = Annotated[JsonObject, BeforeValidator(_refuse_taken)]


def add_effort(variables: Variables | None, effort: str | None) -> dict[str, object]:
    """Adds the effort as vLLM does, and turns thinking on or off for templates with a switch instead of degrees."""
    added = dict(variables or {})
    if effort is not None:
        added.setdefault("enable_thinking", effort != "none")
        added["reasoning_effort"] = effort
    return added
