"""Tasks for the reference model: what it was taught, and the same a little beyond what it can do. Pure.

In: how many of each. Out: items, always the same. The model answers everything it was taught as it should, at 4 bits as
well (docs/accuracy.md), so a loss shows first where it is unsure: words longer than those it was trained on.
"""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from engines.accuracy.items import Answer, Choice, Item
from engines.reference.launch import WEIGHTS
from engines.reference.training.tokenizer import Renderer
from engines.reference.training.world import CAPITALS, Conversation

SEED = 41
OPENING = "<|im_start|>assistant\n"
Asked = tuple[str, str | Choice]  # a question, and the answer or what to choose from


def make_items(per_task: int, template: Path = WEIGHTS / "chat_template.jinja") -> list[Item]:
    """Up to `per_task` of each task; of capitals there are no more than countries."""
    render = Renderer(template)
    return [
        _to_item(render, task, number, asked)
        for task, make in TASKS.items()
        for number, asked in enumerate(_make_all(task, make, per_task))
    ]


def _make_all(task: str, make: Callable[[random.Random, str], Asked], count: int) -> list[Asked]:
    rng = random.Random(f"{SEED} {task}")
    countries = rng.sample(sorted(CAPITALS), len(CAPITALS))
    about = countries[:count] if task in OF_COUNTRIES else [""] * count
    return [make(rng, country) for country in about]


def _to_item(render: Renderer, task: str, number: int, asked: Asked) -> Item:
    question, wanted = asked
    messages: tuple[dict[str, object], ...] = (
        {"role": "user", "content": question},
        {"role": "assistant", "content": ""},
    )
    text = render(Conversation(messages))
    prompt = text[: text.rindex(OPENING) + len(OPENING)]
    if isinstance(wanted, str):
        # As many tokens as characters and a few: an answer that runs away ends.
        return Item(f"{task}/{number}", task, prompt, Answer((wanted,), len(wanted) + 8))
    return Item(f"{task}/{number}", task, prompt, wanted)


def _capital(rng: random.Random, country: str) -> Asked:
    others = rng.sample([city for city in CAPITALS.values() if city != CAPITALS[country]], 3)
    cities = [CAPITALS[country], *others]
    rng.shuffle(cities)
    sentences = tuple(f"The capital of {country} is {city}." for city in cities)
    return f"What is the capital of {country}?", Choice(sentences, cities.index(CAPITALS[country]))


def _json(_rng: random.Random, country: str) -> Asked:
    told = json.dumps({"country": country, "capital": CAPITALS[country]})
    return f"What is the capital of {country}? Answer in JSON.", told


def _sum(rng: random.Random, _country: str) -> Asked:
    a, b = rng.randrange(100), rng.randrange(100)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}"


def _reverse(rng: random.Random, _country: str) -> Asked:
    word = _make_word(rng, rng.randint(4, 8))
    return f"Spell {word} backwards.", word[::-1]


def _repeat(rng: random.Random, _country: str) -> Asked:
    words = " ".join(_make_word(rng, rng.randint(1, 4)) for _ in range(rng.randint(8, 18)))
    return f"Repeat: {words}", words


def _make_word(rng: random.Random, syllables: int) -> str:
    return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(syllables))


# Trained: up to 4 syllables backwards, up to 8 words repeated, sums of two digits, every capital.
TASKS: Mapping[str, Callable[[random.Random, str], Asked]] = {
    "capital": _capital,
    "json": _json,
    "sum": _sum,
    "reverse": _reverse,
    "repeat": _repeat,
}
OF_COUNTRIES = ("capital", "json")
