"""What every framework is asked with; in ../question.py and tests/reference_world.py again."""

import json
from typing import Any

from pydantic import BaseModel

Json = dict[str, Any]  # Any: JSON


class City(BaseModel):
    country: str
    capital: str


WEATHER: Json = {
    "name": "get_weather",
    "description": "Current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def get_weather(city: str) -> str:
    """Current weather in a city"""
    return json.dumps({"city": city, "sky": "sunny", "celsius": 21})


def answer(text: str, *, calls: int = 0, pieces: int = 0, city: City | None = None) -> Json:
    """`calls`: how often the tool was called. `pieces`: in how many the text came, where it was streamed."""
    return {"text": text, "calls": calls, "pieces": pieces, "city": None if city is None else city.model_dump()}
