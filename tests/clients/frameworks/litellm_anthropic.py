"""LiteLLM by Anthropic's Messages."""

from litellm_client import run
from world import Json


def ask(url: str, pin: str, question: Json) -> Json:
    return run(f"anthropic/{question['model']}", url, pin, question)
