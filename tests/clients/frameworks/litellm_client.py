"""LiteLLM by chat completions; its siblings use the other two wires."""

import json

import litellm
from world import WEATHER, City, Json, answer, get_weather

litellm.telemetry = False


def ask(url: str, pin: str, question: Json) -> Json:
    return run(f"openai/{question['model']}", f"{url}/v1", pin, question)


def run(model: str, base: str, pin: str, question: Json) -> Json:
    messages: list[Json] = [{"role": "user", "content": question["text"]}]
    calls = 0
    options: Json = {
        "model": model,
        "api_base": base,
        "api_key": "-",
        "extra_headers": {"x-crossover-pin": pin},
        "max_tokens": 400,
        "temperature": 0.0,
        "num_retries": 0,
    }
    if question["tools"]:
        options["tools"] = [{"type": "function", "function": WEATHER}]
    if question["as_city"]:
        options["response_format"] = City
    while True:
        if question["stream"]:
            chunks = list(litellm.completion(messages=messages, stream=True, **options))
            message = litellm.stream_chunk_builder(chunks).choices[0].message
            pieces = sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks)
        else:
            message, pieces = litellm.completion(messages=messages, **options).choices[0].message, 0
        if not message.tool_calls:
            text = message.content or ""
            city = City.model_validate_json(text) if question["as_city"] else None
            return answer(text, calls=calls, pieces=pieces, city=city)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            calls += 1
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
