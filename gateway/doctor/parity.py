"""Whether the gateway makes the same ids of a text and of a chat as a vLLM with the same model does.

In: the gateway's language of a model, and vLLM's /tokenize. Out: the first difference.
"""

from collections.abc import Sequence
from typing import TypeAlias

from gateway.doctor.http import Http
from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage, Rendering

Chat: TypeAlias = Sequence[dict[str, object]]

# What tokenizers differ in: spaces, digits, case, other scripts, composed and decomposed accents, code, emoji.
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


async def find_difference(http: Http, url: str, language: ModelLanguage) -> str | None:
    """None where all ids are the same, or vLLM tells none. Raises NoAnswer."""
    for text in TEXTS:
        ours = language.tokenize_text(text)
        if (difference := compare(f"the text {text!r}", ours, await _ask(http, url, {"prompt": text}))) is not None:
            return difference
    for chat in CHATS:
        theirs = await _ask(http, url, {"messages": chat, "add_generation_prompt": True})
        try:
            ours = language.tokenize_chat(list(chat), Rendering())
        except InvalidRequest:  # a template without a system role, say: vLLM, with the same one, refuses it too
            continue
        roles = ", ".join(str(message["role"]) for message in chat)
        if (difference := compare(f"a chat ({roles})", ours, theirs)) is not None:
            return difference
    return None


def compare(what: str, ours: Sequence[int], theirs: Sequence[int] | None) -> str | None:
    """In words; None where they are the same or not known."""
    if theirs is None or list(ours) == list(theirs):
        return None
    at = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    place = (
        "one ends where the other goes on" if at is None else f"at {at} it is {ours[at]} here and {theirs[at]} there"
    )
    return f"{what} has {len(ours)} ids here and {len(theirs)} by its /tokenize: {place}"


async def _ask(http: Http, url: str, question: dict[str, object]) -> list[int] | None:
    """None where the server does not tokenize that."""
    answer = await http.post(f"{url}/tokenize", question)
    token_ids = answer.document.get("tokens") if answer.status == 200 else None
    return token_ids if isinstance(token_ids, list) else None
