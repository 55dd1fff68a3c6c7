"""Pydantic AI by Anthropic's Messages."""

import asyncio

from anthropic import AsyncAnthropic
from pydantic_ai import ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai_responses import run
from world import City, Json


def ask(url: str, pin: str, question: Json) -> Json:
    client = AsyncAnthropic(base_url=url, api_key="-", default_headers={"x-crossover-pin": pin})
    model = AnthropicModel(question["model"], provider=AnthropicProvider(anthropic_client=client))
    return asyncio.run(run(model, question, ToolOutput(City)))  # it asks only models that it knows for a form
