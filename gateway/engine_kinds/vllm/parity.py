"""Compares the token ids that a vLLM makes of texts and chats with those that the gateway makes.

In: the gateway's language of a model, and vLLM's /tokenize. Out: the first difference.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gateway.errors import InvalidRequest
from gateway.evidence import Http
from gateway.language import ModelLanguage, Rendering

Chat: TypeAlias = Sequence[dict[str, Any]]  # Any: JSON
Ask: TypeAlias = Callable[[dict[str, object]], Awaitable[list[int] | None]]

# Tokenizers differ in spaces, digits, case, other scripts, composed and decomposed accents, code, emoji.
TEXTS = (
    "The quick brown fox, 12345 times.",
    "  two  spaces\n\n\tand a tab; x_1 = f(a[0]) != None",
    "Zoë Zoe\u0308, naïve — Grüße, здравствуйте, 你好, 👩‍🔬",
)
CHATS: tuple[Chat, ...] = (
    ({"role": "user", "content": TEXTS[0]},),
    (
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": TEXTS[1]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": TEXTS[2]},
    ),
)


class Parity(NamedTuple):
    """A comparison. `texts`, `chats`: how many were compared. `difference`: the first one, in words."""

    texts: int
    chats: int
    difference: str | None


async def compare_prompts(http: Http, url: str, language: ModelLanguage, key: str | None = None) -> Parity:
    """Compares all texts and chats but those that vLLM refuses to tokenize. Raises NoAnswer."""
    ask = partial(_ask, http, url, key)
    texts = [await _compare_text(ask, language, text) for text in TEXTS]
    chats = [await _compare_chat(ask, language, chat) for chat in CHATS]
    return Parity(_count(texts), _count(chats), next(filter(None, (*texts, *chats)), None))


def _count(results: Sequence[str | None]) -> int:
    return sum(result is not None for result in results)


async def _compare_text(ask: Ask, language: ModelLanguage, text: str) -> str | None:
    """Returns the difference, "" if there is none, None if vLLM did not tokenize the text."""
    theirs = await ask({"prompt": text})
    return None if theirs is None else compare(f"the text {text!r}", language.tokenize_text(text), theirs)


async def _compare_chat(ask: Ask, language: ModelLanguage, chat: Chat) -> str | None:
    theirs = await ask({"messages": chat, "add_generation_prompt": True})
    if theirs is None:
        return None
    try:
        ours = language.tokenize_chat(chat, Rendering())
    except InvalidRequest as exc:
        return f"a chat that vLLM takes is refused here: {exc.message}"
    return compare(f"a chat ({', '.join(str(message['role']) for message in chat)})", ours, theirs)


def compare(what: str, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Returns the first difference in words, "" if the ids are the same."""
    if list(ours) == list(theirs):
        return ""
    at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    place = (
        "one ends where the other goes on" if at is None else f"at {at} it is {ours[at]} here and {theirs[at]} there"
    )
    return f"{what} has {len(ours)} ids here and {len(theirs)} by its /tokenize: {place}"


async def _ask(http: Http, url: str, key: str | None, question: dict[str, object]) -> list[int] | None:
    """Returns the server's token ids, None if it does not tokenize that."""
    answer = await http.post(f"{url}/tokenize", question, key)
    token_ids = answer.document.get("tokens") if answer.status == 200 else None
    return token_ids if isinstance(token_ids, list) else None
