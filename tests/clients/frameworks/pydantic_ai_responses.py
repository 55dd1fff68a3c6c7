"""Pydantic AI by OpenAI's Responses; its siblings use the other two wires."""

import asyncio

from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.output import OutputSpec
from pydantic_ai.providers.openai import OpenAIProvider
from world import City, Json, answer, get_weather


def ask(url: str, pin: str, question: Json) -> Json:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="-", default_headers={"x-crossover-pin": pin})
    model = OpenAIResponsesModel(question["model"], provider=OpenAIProvider(openai_client=client))
    return asyncio.run(run(model, question, NativeOutput(City)))


async def run(model: Model, question: Json, city: OutputSpec[City]) -> Json:
    calls = 0

    def call(city: str) -> str:
        nonlocal calls
        calls += 1
        return get_weather(city)

    tool = Tool(call, name="get_weather", description="Current weather in a city", takes_ctx=False)
    agent = Agent(
        model,
        tools=[tool] if question["tools"] else [],
        output_type=city if question["as_city"] else str,
        model_settings={"temperature": 0.0, "max_tokens": 400},
    )
    if not question["stream"]:
        output = (await agent.run(question["text"])).output
        return answer(str(output), calls=calls, city=output if question["as_city"] else None)
    async with agent.run_stream(question["text"]) as result:
        if question["as_city"]:
            output = await result.get_output()
            return answer(str(output), calls=calls, city=output)
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    return answer("".join(pieces), calls=calls, pieces=len(pieces))
