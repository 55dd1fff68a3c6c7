"""Pydantic AI by chat completions."""

import asyncio

from openai import AsyncOpenAI
from pydantic_ai import NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_responses import run
from world import City, Json


def ask(url: str, pin: str, question: Json) -> Json:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", default_headers={"x-crossover-pin": pin})
    model = OpenAIChatModel(question["model"], provider=OpenAIProvider(openai_client=client))
    return asyncio.run(run(model, question, NativeOutput(City)))
