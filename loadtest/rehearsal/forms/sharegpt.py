"""ShareGPT's JSON: conversations as text, without times. Each answer becomes a request; its prompt is all before it.

Conversations begin at random (Poisson); a turn waits for the answer before it, and then for as long as a user might
(exponential). The text itself goes no further than this module.
"""

import io
import json
import random
from collections.abc import Iterator

from loadtest.rehearsal.conversations import TOKEN_S
from loadtest.rehearsal.forms.source import Completion, Source, on_line, sort
from loadtest.rehearsal.traces import MAX_TOKENS, TraceRequest

BLOCK = 64
EMPTY = "no prompt or no answer"
ASKS = frozenset({"human", "user", "system"})
ANSWERS = frozenset({"gpt", "chatgpt", "bing", "bard", "assistant"})


def read_sharegpt(file: io.TextIOBase, completion: Completion) -> Source:
    """Reads [{"conversations": [{"from": "human", "value": "..."}, ...]}, ...]. Raises ValueError with the line."""
    draw, at = random.Random(f"sharegpt {completion.seed}"), 0.0
    requests, dropped, blocks = list[TraceRequest](), 0, 0
    for number, entry in _read_items(file.read()):
        with on_line(number):
            messages = list(_read_messages(entry, completion))
        at += draw.expovariate(completion.rate)
        turns, empty = _list_turns(messages)
        dropped += empty
        due, first = at, len(requests)
        for turn, (prompt_tokens, tokens) in enumerate(turns):
            wait_s = draw.expovariate(1 / completion.wait_s) if turn and completion.wait_s else 0.0
            due += wait_s
            prefix = tuple(range(blocks, blocks + prompt_tokens // BLOCK))
            after = first + turn - 1 if turn else None
            requests.append(TraceRequest(due, prompt_tokens, tokens, "", after, wait_s, prefix, BLOCK))
            due += TOKEN_S * tokens
        blocks += turns[-1][0] // BLOCK if turns else 0
    return Source(sort(requests), {EMPTY: dropped})


def _list_turns(messages: list[tuple[bool, int]]) -> tuple[list[tuple[int, int]], int]:
    """Returns tokens of prompt and answer of each turn, and how many answers had no prompt or no token."""
    so_far, turns, empty = 0, list[tuple[int, int]](), 0
    for is_answer, tokens in messages:
        if is_answer and so_far and tokens and so_far <= MAX_TOKENS:
            turns.append((so_far, tokens))
        else:
            empty += is_answer
        so_far += tokens
    return turns, empty


def _read_messages(entry: object, completion: Completion) -> Iterator[tuple[bool, int]]:
    """Yields for each message whether it is an answer, and its tokens."""
    if not isinstance(entry, dict):
        raise TypeError("a conversation must be a JSON object")
    messages = entry["conversations"]
    if not isinstance(messages, list):
        raise TypeError("conversations must be a list")
    for message in messages:
        if not isinstance(message, dict):
            raise TypeError("a message must be a JSON object")
        role, text = message["from"], message["value"]
        if not isinstance(role, str) or role not in ASKS | ANSWERS:
            raise ValueError(f"from must be human or gpt: {role!r}")
        if not isinstance(text, str):
            raise TypeError("value must be a text")
        yield role in ANSWERS, completion.count_tokens(text)


def _read_items(text: str) -> Iterator[tuple[int, object]]:
    """Yields the items of a JSON list one by one, each with the number of the line on which it begins."""
    decoder, place, line = json.JSONDecoder(), text.find("[") + 1, 1
    line += text.count("\n", 0, place)
    separator = ""
    while True:
        start = _skip_space(text, place)
        line, place = line + text.count("\n", place, start), start
        if text[place : place + 1] == "]":
            return
        if separator and text[place : place + 1] != separator:
            raise ValueError(f"line {line}: the list goes on without a comma, or has no end")
        start = _skip_space(text, place + len(separator))
        line, place, separator = line + text.count("\n", place, start), start, ","
        try:
            item, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError as exc:
            raise ValueError(f"line {exc.lineno}: {exc.msg}") from exc
        yield line, item
        line, place = line + text.count("\n", place, end), end


def _skip_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place
