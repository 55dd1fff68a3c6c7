"""Instructor, which reads answers into models: by a call that has to be made, and by a schema."""

import instructor
from openai import OpenAI
from world import City, Json, answer


def ask(url: str, pin: str, question: Json) -> Json:
    mode = instructor.Mode.TOOLS if question["tools"] else instructor.Mode.JSON_SCHEMA
    with OpenAI(base_url=f"{url}/v1", api_key="-", default_headers={"x-crossover-pin": pin}) as raw:
        client = instructor.from_openai(raw, mode=mode)
        create = client.chat.completions.create_partial if question["stream"] else client.chat.completions.create
        found = create(
            model=question["model"],
            messages=[{"role": "user", "content": question["text"]}],
            response_model=City,
            temperature=0,
            max_tokens=100,
            max_retries=0,
        )
        parts = list(found) if question["stream"] else [found]
    return answer("", pieces=len(parts), city=City.model_validate(parts[-1].model_dump()))
