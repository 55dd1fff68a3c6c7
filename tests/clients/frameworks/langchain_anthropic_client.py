"""LangChain's chat model for Anthropic's API."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from world import WEATHER, City, Json, answer, get_weather


def ask(url: str, pin: str, question: Json) -> Json:
    model = ChatAnthropic(
        model=question["model"],
        base_url=url,
        api_key="-",
        max_tokens=100,
        temperature=0,
        default_headers={"x-crossover-pin": pin},
        max_retries=0,
    )
    if question["as_city"]:
        return answer("", city=model.with_structured_output(City, method="json_schema").invoke(question["text"]))
    schema = {"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}
    bound = model.bind_tools([schema]) if question["tools"] else model
    messages: list[BaseMessage] = [HumanMessage(question["text"])]
    calls = 0
    while True:
        pieces = list(bound.stream(messages)) if question["stream"] else [bound.invoke(messages)]
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        if not whole.tool_calls:
            shown = sum(bool(piece.text) for piece in pieces)
            return answer(str(whole.text), calls=calls, pieces=shown if question["stream"] else 0)
        messages.append(whole)
        for call in whole.tool_calls:
            calls += 1
            messages.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
