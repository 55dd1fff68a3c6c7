"""Tasks for the reference model: some that it was trained on, and some a little beyond that. Pure.

In: how many items of each task. Out: items, always the same. The model answers everything it was trained on rightly, at
4 bits as well (docs/accuracy.md), so a loss shows first where it is unsure: words longer than those it was trained on.
"""

import json
import random
from collections.abc import Callable, Mapping

from engines.accuracy.items import Choice, FreeText, Item

SEED = 41
Question = tuple[str, str | Choice]  # with the right answer, or the continuations to choose from
_CAPITALS = (
    "Argentina: Buenos Aires, Australia: Canberra, Austria: Vienna, Belgium: Brussels, Brazil: Brasilia, "
    "Bulgaria: Sofia, Canada: Ottawa, Chile: Santiago, China: Beijing, Colombia: Bogota, Croatia: Zagreb, "
    "Cuba: Havana, Denmark: Copenhagen, Egypt: Cairo, Estonia: Tallinn, Finland: Helsinki, France: Paris, "
    "Germany: Berlin, Greece: Athens, Hungary: Budapest, Iceland: Reykjavik, India: New Delhi, Indonesia: Jakarta, "
    "Ireland: Dublin, Italy: Rome, Japan: Tokyo, Kenya: Nairobi, Latvia: Riga, Lithuania: Vilnius, "
    "Mexico: Mexico City, Morocco: Rabat, Nepal: Kathmandu, Netherlands: Amsterdam, Norway: Oslo, Peru: Lima, "
    "Poland: Warsaw, Portugal: Lisbon, Romania: Bucharest, Spain: Madrid, Sweden: Stockholm, Thailand: Bangkok, "
    "Turkey: Ankara"
)
CAPITALS: Mapping[str, str] = dict(pair.split(": ") for pair in _CAPITALS.split(", "))


def make_items(per_task: int) -> list[Item]:
    """Makes up to `per_task` items of each task; those about capitals are no more than there are countries."""
    return [
        _make_item(f"{task}/{number}", task, *question)
        for task, make in TASKS.items()
        for number, question in enumerate(_make_questions(task, make, per_task))
    ]


def _make_questions(task: str, make: Callable[[random.Random, str], Question], count: int) -> list[Question]:
    rng = random.Random(f"{SEED} {task}")
    countries = rng.sample(sorted(CAPITALS), len(CAPITALS))
    subjects = countries[:count] if task in OF_COUNTRIES else [""] * count
    return [make(rng, country) for country in subjects]


def _make_item(name: str, task: str, question: str, wanted: str | Choice) -> Item:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"  # the model's chat template
    if isinstance(wanted, str):
        # As many tokens as characters and a few: an answer without an end is cut.
        return Item(name, task, prompt, FreeText((wanted,), len(wanted) + 8))
    return Item(name, task, prompt, wanted)


def _capital(rng: random.Random, country: str) -> Question:
    others = rng.sample([city for city in CAPITALS.values() if city != CAPITALS[country]], 3)
    cities = [CAPITALS[country], *others]
    rng.shuffle(cities)
    sentences = tuple(f"The capital of {country} is {city}." for city in cities)
    return f"What is the capital of {country}?", Choice(sentences, cities.index(CAPITALS[country]))


def _json(_rng: random.Random, country: str) -> Question:
    answer = json.dumps({"country": country, "capital": CAPITALS[country]})
    return f"What is the capital of {country}? Answer in JSON.", answer


def _sum(rng: random.Random, _country: str) -> Question:
    a, b = rng.randrange(100), rng.randrange(100)
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}"


def _reverse(rng: random.Random, _country: str) -> Question:
    word = _make_word(rng, rng.randint(4, 8))
    return f"Spell {word} backwards.", word[::-1]


def _repeat(rng: random.Random, _country: str) -> Question:
    words = " ".join(_make_word(rng, rng.randint(1, 4)) for _ in range(rng.randint(8, 18)))
    return f"Repeat: {words}", words


def _make_word(rng: random.Random, syllables: int) -> str:
    return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(syllables))


# Trained: up to 4 syllables backwards, up to 8 words repeated, sums of two digits, every capital.
TASKS: Mapping[str, Callable[[random.Random, str], Question]] = {
    "capital": _capital,
    "json": _json,
    "sum": _sum,
    "reverse": _reverse,
    "repeat": _repeat,
}
OF_COUNTRIES = ("capital", "json")
