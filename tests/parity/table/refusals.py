"""What no engine is asked: one case of each kind, and what vLLM's own server answers all the same (differences.py).

The tables of tests/openai hold the others; they need no engine.
"""

from collections.abc import Mapping
from dataclasses import replace

from tests.parity.case import Case, Refused, chat, text

JSON = {"type": "json_object"}
CONTEXT = "context_length_exceeded"


def wrong(field: str, value: object, param: str | None = None, *, why: str = "") -> Case:
    """A chat that is refused for one field."""
    return _refuse(chat(f"refused: {field}{_because(why)}", "hi"), {field: value}, param or field)


def wrong_text(field: str, value: object, *, why: str = "") -> Case:
    return _refuse(text(f"refused completion: {field}{_because(why)}", "hi"), {field: value}, field)


def _because(why: str) -> str:
    return f", {why}" if why else ""


def _refuse(case: Case, fields: Mapping[str, object], param: str) -> Case:
    return replace(case, body={**case.body, **fields}, expected=Refused(param))


CASES: tuple[Case, ...] = (
    chat("refused: an unknown model", "hi", Refused("model", "model_not_found", 404), model="nobody"),
    wrong("frequency", 1.0, why="unknown"),
    wrong("temperature", 2.5, why="too high"),
    wrong("temperature", "1", why="a string"),
    wrong("n", True, why="a boolean"),
    wrong("ignore_eos", "yes", why="a string"),
    wrong("stop", ["a", "b", "c", "d", "e"], why="five"),
    wrong("stop_token_ids", [1024], why="outside the vocabulary"),
    wrong("logit_bias", {"5": 101}, "logit_bias.5", why="too great"),
    wrong("messages", [{"role": "wizard", "content": "hi"}], "messages.0.role", why="an unknown role"),
    wrong("tool_choice", "required", why="without tools"),
    wrong("response_format", {"type": "json_schema"}, "response_format.json_schema", why="no schema"),
    wrong("bad_words", ["hi"]),
    chat("refused: too long", "hi " * 1100, Refused("messages", CONTEXT)),
    text("refused completion: max_tokens, beyond the context", "hi", Refused("max_tokens", CONTEXT), max_tokens=1025),
    wrong_text("prompt", None, why="null"),
    wrong_text("best_of", 2, why="more than n"),
    wrong_text("logprobs", 6, why="too many"),
    text("refused completion: an id outside the vocabulary", [5, 1024], Refused("prompt")),
    text("refused completion: too long", [5] * 1024, Refused("prompt", CONTEXT)),
)
