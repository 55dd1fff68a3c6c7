"""OpenAI's agents SDK, by chat completions."""

import asyncio

from agents import OpenAIChatCompletionsModel
from openai_agents import run
from world import Json


def ask(url: str, pin: str, question: Json) -> Json:
    return asyncio.run(run(url, pin, question, OpenAIChatCompletionsModel))
