"""LlamaIndex by chat completions; its class for Messages takes only models that it knows."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from world import City, Json, answer, get_weather


def ask(url: str, pin: str, question: Json) -> Json:
    model = OpenAILike(
        model=question["model"],
        api_base=f"{url}/v1",
        api_key="-",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0.0,
        max_tokens=100,
        context_window=1024,
        max_retries=0,
        default_headers={"x-crossover-pin": pin},
    )
    return asyncio.run(run(model, question))


async def run(model: FunctionCallingLLM, question: Json) -> Json:
    if question["as_city"]:
        found = await model.as_structured_llm(City).achat([ChatMessage(question["text"])])
        return answer("", city=found.raw)
    if not question["tools"]:
        return await chat(model, question)
    calls = 0

    def call(city: str) -> str:
        nonlocal calls
        calls += 1
        return get_weather(city)

    tool = FunctionTool.from_defaults(call, name="get_weather", description="Current weather in a city")
    agent = FunctionAgent(tools=[tool], llm=model, streaming=question["stream"])
    handler, pieces = agent.run(question["text"]), 0
    async for event in handler.stream_events():
        pieces += isinstance(event, AgentStream) and bool(event.delta)
    return answer(str(await handler), calls=calls, pieces=pieces)


async def chat(model: FunctionCallingLLM, question: Json) -> Json:
    messages = [ChatMessage(question["text"])]
    if not question["stream"]:
        return answer(str((await model.achat(messages)).message.content))
    pieces = [chunk.delta async for chunk in await model.astream_chat(messages) if chunk.delta]
    return answer("".join(pieces), pieces=len(pieces))
