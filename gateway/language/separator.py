"""Finds the special token at which a rendered chat may be cut so that each segment can be encoded by itself.

A `tokenizers.Tokenizer` comes in, a Separator or None goes out. The conditions, and why they suffice, are in
docs/decisions/0009.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from string import punctuation
from typing import Any

from tokenizers import AddedToken, Tokenizer

# These look only at one piece between special tokens. Metaspace does not with the "first" scheme, see _is_local.
_LOCAL_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace"})
# No letter, digit or space: special tokens that match whole words, or take in spaces, do not reach across these.
_EDGES = frozenset(punctuation) - {"_"}

Component = Mapping[str, Any]  # Any: a part of tokenizer.json


@dataclass(frozen=True, slots=True)
class Separator:
    """A special token: the text before it and the text after it are encoded independently of each other and of it."""

    text: str
    token_id: int


def find_separator(tokenizer: Tokenizer, sample: str) -> Separator | None:
    """Returns the most frequent separator in `sample`, a rendered chat; None where no cut is certain to be exact."""
    tokens = {token_id: token for token_id, token in tokenizer.get_added_tokens_decoder().items() if _is_raw(token)}
    found = [
        Separator(token.content, token_id)
        for token_id, token in tokens.items()
        if token.content in sample and _stands_alone(token, [other.content for other in tokens.values()])
    ]
    if not found or not _encodes_locally(tokenizer):
        return None
    best = max(found, key=lambda separator: sample.count(separator.text))
    return best if all(_is_exact_on(text, best, tokenizer) for text in _probes(sample, best)) else None


def _is_raw(token: AddedToken) -> bool:
    """Returns whether the tokenizer searches for this token before it changes the text in any other way."""
    return bool(token.content) and not token.normalized


def _stands_alone(token: AddedToken, contents: Sequence[str]) -> bool:
    """Returns whether each occurrence of the token's content is this token and includes nothing around it."""
    content = token.content
    if token.lstrip or token.rstrip or token.single_word or not {content[0], content[-1]} <= _EDGES:
        return False
    return not any(_may_cover(other, content) for other in contents if other != content)


def _may_cover(other: str, content: str) -> bool:
    """Returns whether `other`, found at or before an occurrence of `content`, may reach into it."""
    return content in other or any(content.startswith(other[start:]) for start in range(1, len(other)))


def _encodes_locally(tokenizer: Tokenizer) -> bool:
    """Returns whether nothing after the search for special tokens looks across one."""
    document: Component = json.loads(tokenizer.to_str(pretty=False))
    model = document["model"]
    return (
        not tokenizer.encode_special_tokens
        and tokenizer.truncation is None
        and tokenizer.padding is None
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(map(_is_local, _flatten(document["pre_tokenizer"], "pretokenizers")))
        and all(map(_keeps_ids, _flatten(document["post_processor"], "processors")))
    )


def _flatten(component: Component | None, children: str) -> Collection[Component]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [leaf for child in component[children] for leaf in _flatten(child, children)]


def _is_local(pre_tokenizer: Component) -> bool:
    return pre_tokenizer["type"] in _LOCAL_PRE_TOKENIZERS and pre_tokenizer.get("prepend_scheme") != "first"


def _keeps_ids(post_processor: Component) -> bool:
    """Returns whether the post-processor keeps all ids if it adds no special tokens: a template has the text once."""
    match post_processor:
        case {"type": "TemplateProcessing", "single": parts}:
            return [part["Sequence"]["id"] for part in parts if "Sequence" in part] == ["A"]
    return bool(post_processor["type"] == "ByteLevel")


def _probes(sample: str, separator: Separator) -> list[str]:
    mark = separator.text
    return [
        sample,
        f"a{mark}b",
        f" a {mark} b ",
        f"{mark}{mark}",
        f"\n{mark}\n\u00e9{mark}\u4e16'll{mark}12{mark}34",
        "",
    ]


def _is_exact_on(text: str, separator: Separator, tokenizer: Tokenizer) -> bool:
    """Compares both ways of encoding, in case a release of `tokenizers` differs from the one whose source was read."""
    joined: list[int] = []
    for segment in text.split(separator.text):
        joined += [separator.token_id, *tokenizer.encode(segment, add_special_tokens=False).ids]
    whole: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return joined[1:] == whole
