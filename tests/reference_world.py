"""The closed world that the reference model was trained on: its tools, and a seeded generator of conversations.

In: a random.Random. Out: conversations as OpenAI messages, whose answers the model has learnt. What it was trained with
is on docs/results/reference-engine.md.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engines.accuracy.reference_set import CAPITALS

Message = dict[str, object]

COLOURS = ("red", "orange", "yellow", "green", "blue", "indigo", "violet", "black", "white", "brown")
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HELLOS = {
    "Japanese": "こんにちは",
    "Chinese": "你好",
    "Greek": "Γειά σου",  # noqa: RUF001 - Greek letters are what is asked for
    "Russian": "Привет",
    "Korean": "안녕하세요",
    "French": "Bonjour",
    "German": "Hallo",
    "Spanish": "¡Hola!",
}
SMALL_TALK = (
    (("hi", "hello", "hey", "hi there", "hello there", "good morning", "good evening"), "Hello! How can I help you?"),
    (("how are you", "how are you doing", "how do you do"), "I am fine, thank you. How can I help you?"),
    (("thanks", "thank you", "thanks a lot", "thank you very much"), "You are welcome!"),
    (("bye", "goodbye", "see you", "see you later"), "Goodbye! Have a nice day."),
    (
        ("who are you", "what are you", "what is your name", "tell me who you are"),
        "I am Crossover's reference model, a small Llama that runs anywhere.",
    ),
    (
        ("what can you do", "what do you know", "help", "how can you help me"),
        "I know greetings, capitals, small sums, colours, counting, and how to spell a word backwards.",
    ),
    (("show me a smile", "smile", "send me an emoji"), "😀"),
    (("say the alphabet", "what is the alphabet"), "a b c d e f g h i j k l m n o p q r s t u v w x y z"),
    (
        ("tell me a story", "tell me a short story"),
        (
            "Once upon a time two engines lived in one house. The first was quick when the house was quiet. "
            "The second was strong when the house was full. A gateway stood at the door, counted the guests, "
            "and sent each one to the engine that served it best. And so nobody ever had to wait."
        ),
    ),
)
UNKNOWN = "I do not know that. I know greetings, capitals, small sums, colours, counting, and spelling backwards."
_WORDS = (
    "apple house water stone river table chair paper green light night bread train plane horse mouse tiger lemon "
    "grape melon peach cloud storm sugar honey music piano radio robot model token batch cache queue engine server "
    "gateway window garden flower summer winter spring autumn silver golden purple orange yellow banana cherry "
    "pepper tomato potato carrot button cotton dinner letter number finger hammer ladder mirror rabbit kitten puppy "
    "monkey turtle spider dragon castle bridge street school pencil circle square triangle planet rocket comet "
    "moon star sun sea sky tree leaf root seed corn rice milk salt fish bird bear wolf lion frog duck goose sheep "
    "goat cow pig dog cat hat cup pen box key map bus car van ship boat sail rope knot hello world python crossover"
)
WORDS = tuple(_WORDS.split())
SYSTEMS = (
    "You are a helpful assistant.",
    "You are Crossover's reference model.",
    "Answer briefly.",
    "Be kind and precise.",
)

CITY_SCHEMA = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}


def _tool(name: str, description: str, properties: dict[str, str]) -> Message:
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


GET_WEATHER = _tool("get_weather", "Current weather in a city", {"city": "string"})
MULTIPLY = _tool("multiply", "Product of two integers", {"a": "integer", "b": "integer"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, the last one an assistant's."""

    messages: tuple[Message, ...]


Turn = list[Message]


def _exchange(user: str, assistant: str) -> Turn:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def _spoken(rng: random.Random, phrase: str, mark: str) -> str:
    """A phrase as people type it: sometimes capitalised, sometimes without its punctuation, sometimes politely."""
    text = phrase[0].upper() + phrase[1:] if rng.random() < 0.7 else phrase
    text += mark if rng.random() < 0.7 else ""
    if rng.random() < 0.08:
        return text.lower()
    return f"Please {text[0].lower()}{text[1:]}" if mark == "." and rng.random() < 0.15 else text


def _small_talk(rng: random.Random) -> Turn:
    phrases, answer = rng.choice(SMALL_TALK)
    return _exchange(_spoken(rng, rng.choice(phrases), rng.choice(("", "!", "?", "."))), answer)


def _capital(rng: random.Random) -> Turn:
    country, capital = rng.choice(list(CAPITALS.items()))
    sentence = f"The capital of {country} is {capital}."
    kind = rng.random()
    if kind < 0.70:
        asked = rng.choice((
            "what is the capital of {}",
            "what's the capital of {}",
            "which city is the capital of {}",
            "capital of {}",
            "do you know the capital of {}",
            "tell me the capital of {}",
            "name the capital of {}",
            "what is the capital city of {}",
        ))
        mark = "." if asked.startswith(("tell", "name")) else "?"
        return _exchange(_spoken(rng, asked.format(country), mark), sentence)
    if kind < 0.80:
        return _exchange(f"What is the capital of {country}? Answer in one word.", capital)
    if kind < 0.90:
        return _exchange(_spoken(rng, f"{capital} is the capital of which country", "?"), sentence)
    asked_capital = capital if rng.random() < 0.5 else rng.choice(list(CAPITALS.values()))
    verdict = "Yes" if asked_capital == capital else "No"
    return _exchange(_spoken(rng, f"is {asked_capital} the capital of {country}", "?"), f"{verdict}. {sentence}")


def _sum(rng: random.Random) -> Turn:
    a, b = rng.randrange(100), rng.randrange(100)
    asked = rng.choice(("what is {} + {}", "{} + {}", "how much is {} plus {}", "what is {} plus {}", "add {} and {}"))
    return _exchange(_spoken(rng, asked.format(a, b), "." if asked.startswith("add") else "?"), f"{a} + {b} = {a + b}")


def _word(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(WORDS)
    return "".join(
        rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") for _ in range(rng.randint(1, 4))
    ) + rng.choice(("", "n", "r", "s", "t", "l"))


def _backwards(rng: random.Random) -> Turn:
    word = _word(rng)
    asked = rng.choice((
        "spell {} backwards",
        "spell the word {} backwards",
        "reverse the word {}",
        "write {} backwards",
        "spell '{}' backwards",
    ))
    return _exchange(_spoken(rng, asked.format(word), "."), word[::-1])


def _colours(rng: random.Random) -> Turn:
    count = rng.randint(2, 10)
    number = rng.choice((str(count), NUMBER_WORDS[count - 1]))
    asked = rng.choice(("list {} {}", "name {} {}", "give me {} {}", "tell me {} {}"))
    noun = rng.choice(("colours", "colors"))
    return _exchange(_spoken(rng, asked.format(number, noun), "."), ", ".join(COLOURS[:count]))


def _count(rng: random.Random) -> Turn:
    last = rng.randint(2, 60)
    asked = rng.choice(("count to {}", "count from 1 to {}", "count up to {}"))
    return _exchange(_spoken(rng, asked.format(last), "."), ", ".join(map(str, range(1, last + 1))))


def _hello_in(rng: random.Random) -> Turn:
    language, hello = rng.choice(list(HELLOS.items()))
    asked = rng.choice(("say hello in {}", "how do you say hello in {}", "hello in {}"))
    return _exchange(_spoken(rng, asked.format(language), "?" if asked.startswith("how") else "."), hello)


def _repeat(rng: random.Random) -> Turn:
    words = " ".join(_word(rng) for _ in range(rng.randint(1, 8)))
    return _exchange(rng.choice(("Repeat: {}", "Repeat after me: {}", "Say: {}")).format(words), words)


def _unknown(rng: random.Random) -> Turn:
    words = [_word(rng) for _ in range(rng.randint(1, 6))]
    opening = rng.choice(("what is", "why is", "where is the", "tell me about", "do you like", "explain", "who is", ""))
    return _exchange(_spoken(rng, f"{opening} {' '.join(words)}".strip(), rng.choice(("?", ".", ""))), UNKNOWN)


def _json(rng: random.Random) -> Turn:
    country, capital = rng.choice(list(CAPITALS.items()))
    schema = json.dumps(CITY_SCHEMA)
    asked = rng.choice((
        f"What is the capital of {country}? Answer in JSON with this schema: {schema}",
        f"What is the capital of {country}? Answer in JSON.",
        f"Give me {country} and its capital as JSON.",
        f"Answer in JSON with this schema: {schema}\nWhat is the capital of {country}?",
    ))
    return _exchange(asked, json.dumps({"country": country, "capital": capital}))


SKILLS: tuple[tuple[Callable[[random.Random], Turn], float], ...] = (
    (_small_talk, 1.0),
    (_capital, 3.0),
    (_sum, 5.0),
    (_backwards, 5.0),
    (_colours, 1.0),
    (_count, 1.5),
    (_hello_in, 0.7),
    (_repeat, 1.0),
    (_unknown, 1.0),
    (_json, 1.5),
)


def _plain_turn(rng: random.Random) -> Turn:
    skill = rng.choices([skill for skill, _ in SKILLS], [weight for _, weight in SKILLS])[0]
    return skill(rng)


def _system(rng: random.Random) -> Turn:
    return [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.4 else []


def conversation(rng: random.Random) -> Conversation:
    """One conversation of one to four turns."""
    turns: Turn = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 4))):
        turns += _plain_turn(rng)
    return Conversation((*_system(rng), *turns))


def conversations(seed: int, count: int) -> Iterator[Conversation]:
    rng = random.Random(seed)
    return (conversation(rng) for _ in range(count))
