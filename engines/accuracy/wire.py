"""OpenAI's completions and chats as this command asks for them and reads them. Pure: values in, JSON out, and back.

Raises CannotMeasure for an answer that lacks what was asked for. Knows no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Answer, Messages
from engines.accuracy.rows import Row

Json: TypeAlias = dict[str, Any]  # Any: what another process answers, read key by key

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NAMED = "token_id:"  # how vLLM names tokens under return_tokens_as_token_ids


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an endpoint was seen to tell, beside the text. `refusal`: why it tells no scores, if it said so.

    `scores`: log-probabilities, of prompts (echo) too. `names_ids`: alternatives are ids, so that two tokens of one
    text stay two. `ids`: which tokens were generated (vLLM's return_token_ids).
    """

    scores: bool = False
    names_ids: bool = False
    ids: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """A greedy answer. Ids are None where the endpoint does not tell them, rows empty where it tells no scores."""

    text: str
    finish_reason: str
    completion_tokens: int
    prompt_ids: tuple[int, ...] | None
    token_ids: tuple[int, ...] | None
    rows: tuple[Row, ...]


def body_of_probe(model: str, top: int, wanted: Abilities) -> Json:
    return (
        body_of_scores(model, "Hello there", top, wanted) if wanted.scores else _body(model, "Hello there", 1, wanted)
    )


def body_of_scores(model: str, prompt: str | Sequence[int], top: int, abilities: Abilities) -> Json:
    """Log-probabilities of every token of the prompt; one more is generated, for the gateway takes no less."""
    return _body(model, prompt, 1, abilities) | {"echo": True, "logprobs": top} | _naming(abilities)


def body_of_answer(model: str, prompt: str, answer: Answer, top: int, abilities: Abilities) -> Json:
    scores = {"logprobs": top} | _naming(abilities) if abilities.scores else {}
    return _body(model, prompt, answer.max_tokens, abilities) | _stop(answer) | scores


def body_of_chat(model: str, messages: Messages, answer: Answer, abilities: Abilities) -> Json:
    body = _body(model, "", answer.max_tokens, abilities) | _stop(answer) | {"messages": list(messages)}
    del body["prompt"]
    return body


def _body(model: str, prompt: str | Sequence[int], max_tokens: int, abilities: Abilities) -> Json:
    asked = prompt if isinstance(prompt, str) else list(prompt)
    ids = {"return_token_ids": True} if abilities.ids else {}
    return {"model": model, "prompt": asked, "max_tokens": max_tokens, "temperature": 0} | ids


def _naming(abilities: Abilities) -> Json:
    return {"return_tokens_as_token_ids": True} if abilities.names_ids else {}


def _stop(answer: Answer) -> Json:
    return {"stop": list(answer.stop)} if answer.stop else {}


def read_probe(page: Json, refusal: str) -> Abilities:
    """What the answer shows that was asked for: older servers drop fields that they do not know."""
    choice = _choice(page)
    tokens = [row.text for row in _rows(choice)]
    # The prompt's and the generated one.
    scores = len(tokens) >= 2
    named = scores and all(token.startswith(NAMED) for token in tokens)
    return Abilities(scores, named, choice.get("token_ids") is not None, "" if scores else refusal)


def read_written(page: Json) -> Written:
    choice = _choice(page)
    message = choice.get("message")
    text = message.get("content") or "" if isinstance(message, dict) else choice.get("text", "")
    usage = page.get("usage") or {}
    prompt_ids, token_ids = choice.get("prompt_token_ids", page.get("prompt_token_ids")), choice.get("token_ids")
    return Written(
        text=str(text),
        finish_reason=str(choice.get("finish_reason")),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        token_ids=None if token_ids is None else tuple(token_ids),
        rows=() if isinstance(message, dict) else _rows(choice),
    )


def read_scores(page: Json) -> tuple[Row, ...]:
    """Of the prompt, and the generated token's at the end."""
    rows = _rows(_choice(page))
    if len(rows) < 2:
        raise CannotMeasure("an answer without the log-probabilities that were asked for")
    return rows


def tail(rows: Sequence[Row], text: str) -> tuple[Row, ...]:
    """The rows whose tokens spell the end of a prompt, `text`; one that began before it counts as well.

    By text rather than by id, for which everybody's tokenizer would have to be here. Raises CannotMeasure if the tokens
    spell something else: a tokenizer that changes what it is given.
    """
    count = length = 0
    for row in reversed(rows):
        if length >= len(text) and row.text:
            break
        length, count = length + len(row.text), count + 1
    found = tuple(rows[len(rows) - count :])
    spelled = "".join(row.text for row in found)
    if not spelled.endswith(text) or any(row.logprob is None for row in found):
        raise CannotMeasure(f"the endpoint's tokens spell {spelled[-60:]!r} where {text[-60:]!r} was asked about")
    return found


def _choice(page: Json) -> Json:
    choices = page.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CannotMeasure("an answer without choices")
    return choices[0]


def _rows(choice: Json) -> tuple[Row, ...]:
    told = choice.get("logprobs")
    if not isinstance(told, dict) or not told.get("tokens"):
        return ()
    tops: Sequence[Mapping[str, float] | None] = told.get("top_logprobs") or [None] * len(told["tokens"])
    columns = zip(told["tokens"], told["token_logprobs"], tops, strict=True)
    return tuple(Row(text, logprob, top or {}) for text, logprob, top in columns)
