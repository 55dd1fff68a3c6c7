"""Completions and chats in OpenAI's JSON: the requests of this command, and what it reads of the responses. Pure.

Raises CannotMeasure for a response without what was asked for. Knows no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from engines.accuracy.divergence import ScoredToken
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import FreeText, Messages

Json: TypeAlias = dict[str, Any]  # Any: JSON of another process, read key by key

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ID_PREFIX = "token_id:"  # how vLLM names tokens under return_tokens_as_token_ids


@dataclass(frozen=True, slots=True)
class Abilities:
    """The fields that an endpoint returned beside the text. `refusal`: why it returns no scores, in its own words.

    `scores`: log-probabilities, of prompts (echo) too. `names_ids`: alternatives are ids, so that two tokens of one
    text stay two. `ids`: which tokens were generated (vLLM's return_token_ids).
    """

    scores: bool = False
    names_ids: bool = False
    ids: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Generated:
    """A greedy answer. Ids are None where the endpoint returns none, `tokens` empty where it returns no scores."""

    text: str
    finish_reason: str
    completion_tokens: int
    prompt_ids: tuple[int, ...] | None
    token_ids: tuple[int, ...] | None
    tokens: tuple[ScoredToken, ...]


def make_probe(model: str, top: int, wanted: Abilities) -> Json:
    text = "Hello there"
    return make_score_request(model, text, top, wanted) if wanted.scores else _make_body(model, text, 1, wanted)


def make_score_request(model: str, prompt: str | Sequence[int], top: int, abilities: Abilities) -> Json:
    """Asks for the log-probability of every prompt token; one more token is generated, as the gateway takes no less."""
    return _make_body(model, prompt, 1, abilities) | {"echo": True, "logprobs": top} | _name_by_id(abilities)


def make_completion_request(model: str, prompt: str, wanted: FreeText, top: int, abilities: Abilities) -> Json:
    scores = {"logprobs": top} | _name_by_id(abilities) if abilities.scores else {}
    return _make_body(model, prompt, wanted.max_tokens, abilities) | _make_stop(wanted) | scores


def make_chat_request(model: str, messages: Messages, wanted: FreeText, abilities: Abilities) -> Json:
    body = _make_body(model, "", wanted.max_tokens, abilities) | _make_stop(wanted) | {"messages": list(messages)}
    del body["prompt"]
    return body


def _make_body(model: str, prompt: str | Sequence[int], max_tokens: int, abilities: Abilities) -> Json:
    value = prompt if isinstance(prompt, str) else list(prompt)
    ids = {"return_token_ids": True} if abilities.ids else {}
    return {"model": model, "prompt": value, "max_tokens": max_tokens, "temperature": 0} | ids


def _name_by_id(abilities: Abilities) -> Json:
    return {"return_tokens_as_token_ids": True} if abilities.names_ids else {}


def _make_stop(wanted: FreeText) -> Json:
    return {"stop": list(wanted.stop)} if wanted.stop else {}


def read_probe(page: Json, refusal: str) -> Abilities:
    """Finds the abilities by what the response holds: older servers drop fields that they do not know."""
    choice = _find_choice(page)
    names = [token.text for token in _read_tokens(choice)]
    scores = len(names) >= 2  # the prompt's and the generated one
    names_ids = scores and all(name.startswith(ID_PREFIX) for name in names)
    return Abilities(scores, names_ids, choice.get("token_ids") is not None, "" if scores else refusal)


def read_generated(page: Json) -> Generated:
    choice = _find_choice(page)
    message = choice.get("message")
    text = message.get("content") or "" if isinstance(message, dict) else choice.get("text", "")
    usage = page.get("usage") or {}
    prompt_ids, token_ids = choice.get("prompt_token_ids", page.get("prompt_token_ids")), choice.get("token_ids")
    return Generated(
        text=str(text),
        finish_reason=str(choice.get("finish_reason")),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        token_ids=None if token_ids is None else tuple(token_ids),
        tokens=() if isinstance(message, dict) else _read_tokens(choice),
    )


def read_scores(page: Json) -> tuple[ScoredToken, ...]:
    """Reads the prompt's tokens, and the generated one at the end."""
    tokens = _read_tokens(_find_choice(page))
    if len(tokens) < 2:
        raise CannotMeasure("an answer without the log-probabilities that were asked for")
    return tokens


def cut_end(tokens: Sequence[ScoredToken], text: str) -> tuple[ScoredToken, ...]:
    """The tokens that spell `text`, the end of a prompt; one that begins before it counts as well.

    Compares texts and not ids, which would need every endpoint's tokenizer here. Raises CannotMeasure if the tokens
    spell something else: the endpoint's tokenizer normalizes its input.
    """
    count = length = 0
    for token in reversed(tokens):
        if length >= len(text) and token.text:
            break
        length, count = length + len(token.text), count + 1
    found = tuple(tokens[len(tokens) - count :])
    spelled = "".join(token.text for token in found)
    if not spelled.endswith(text) or any(token.logprob is None for token in found):
        raise CannotMeasure(f"the endpoint's tokens spell {spelled[-60:]!r} where {text[-60:]!r} was asked about")
    return found


def _find_choice(page: Json) -> Json:
    choices = page.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise CannotMeasure("an answer without choices")
    return choices[0]


def _read_tokens(choice: Json) -> tuple[ScoredToken, ...]:
    scores = choice.get("logprobs")
    if not isinstance(scores, dict) or not scores.get("tokens"):
        return ()
    tops: Sequence[Mapping[str, float] | None] = scores.get("top_logprobs") or [None] * len(scores["tokens"])
    columns = zip(scores["tokens"], scores["token_logprobs"], tops, strict=True)
    return tuple(ScoredToken(text, logprob, top or {}) for text, logprob, top in columns)
