"""LiteLLM by OpenAI's Responses."""

from litellm_client import run
from world import Json


def ask(url: str, pin: str, question: Json) -> Json:
    return run(f"openai/responses/{question['model']}", f"{url}/v1", pin, question)
