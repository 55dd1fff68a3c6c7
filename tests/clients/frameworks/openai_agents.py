"""OpenAI's agents SDK, by Responses, which it uses unless told otherwise; openai_agents_chat.py has the other mode."""

import asyncio
import json

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from world import WEATHER, City, Json, answer, get_weather

set_tracing_disabled(True)


def ask(url: str, pin: str, question: Json) -> Json:
    return asyncio.run(run(url, pin, question, OpenAIResponsesModel))


async def run(
    url: str, pin: str, question: Json, kind: type[OpenAIResponsesModel | OpenAIChatCompletionsModel]
) -> Json:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-", default_headers={"x-crossover-pin": pin}) as client:
        return await run_agent(kind(model=question["model"], openai_client=client), question)


async def run_agent(model: Model, question: Json) -> Json:
    calls = 0

    async def call(_context: RunContextWrapper[None], arguments: str) -> str:
        nonlocal calls
        calls += 1
        return get_weather(**json.loads(arguments))

    tool = FunctionTool(
        name=WEATHER["name"],
        description=WEATHER["description"],
        params_json_schema=WEATHER["parameters"],
        on_invoke_tool=call,
        strict_json_schema=False,
    )
    agent = Agent(
        name="tester",
        model=model,
        tools=[tool] if question["tools"] else [],
        output_type=City if question["as_city"] else None,
        model_settings=ModelSettings(temperature=0.0),
    )
    if not question["stream"]:
        output = (await Runner.run(agent, question["text"])).final_output
        return answer(str(output), calls=calls, city=output if question["as_city"] else None)
    result, pieces = Runner.run_streamed(agent, question["text"]), 0
    async for event in result.stream_events():
        pieces += event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    output = result.final_output
    return answer(str(output), calls=calls, pieces=pieces, city=output if question["as_city"] else None)
