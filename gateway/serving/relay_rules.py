"""Which fields and URLs of a client's own body may go on to an engine, as the operator allows.

In: a body's JSON, its path, the rules for each backend. Out: the backends that it may not go to, or the error that
names the field. Pure. What an engine does with a body was read in vLLM 0.32: its request models,
renderers/chat_utils.py and multimodal/media/connector.py.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.anthropic.messages import MessagesRequest
from gateway.errors import InvalidRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.generation import MAX_SEQUENCES
from gateway.openai.responses import ResponsesRequest
from gateway.openai.tokenize import Detokenize, TokenizeChat, TokenizeText
from gateway.settings import AllowSettings
from gateway.wire.body import Body
from gateway.wire.fields import Only, WireModel
from gateway.wire.parse import MAX_NAME_LENGTH
from gateway.wire.rendering import TAKEN

NOBODY: frozenset[str] = frozenset()
COUNTED = frozenset({"n", "best_of", "prompt"})  # by `count_sequences`

# On every other path: the fields of vLLM's /v1/embeddings, /v1/rerank and /v1/score that are the question itself.
POOLING = frozenset({
    "add_generation_prompt", "add_special_tokens", "chat_template_kwargs", "continue_final_message", "data_1", "data_2",
    "dimensions", "documents", "embed_dtype", "encoding_format", "endianness", "input", "instruction", "items",
    "max_tokens_per_doc", "max_tokens_per_query", "messages", "model", "queries", "query", "return_documents", "text_1",
    "text_2", "top_n", "truncate_prompt_tokens", "truncation_side", "use_activation", "user",
})  # fmt: skip
RELAYED = frozenset({"audio", "modalities"})  # refused where the gateway reads a body, and what makes it go on
# A vLLM extension that the gateway knows, and that an operator enables by a capability.
UNASKED = frozenset({"priority"})

# Inside of messages and other inputs. An item's own id is one under which vLLM finds it again, for whoever names it.
IN_PARTS = frozenset({"audio_embeds", "image_embeds", "prompt_embeds", "uuid", "video_embeds"})
KEYS_OF_INTEREST = IN_PARTS | {"url", "type"}  # and what ends in _url
HOLDERS = (dict, list)
MAX_SCHEME = 32  # characters
MAX_STEPS = 16  # of a path in an error
# An authority that no two programs read differently: nothing escaped, no user, no backslash.
URL = re.compile(r"(https?)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?(?:[/?#][^\s\\]*)?", re.IGNORECASE | re.ASCII)
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _known(body: type[WireModel]) -> frozenset[str]:
    fields = body.model_fields.items()
    return frozenset(name for name, field in fields if not any(isinstance(note, Only) for note in field.metadata))


@dataclass(frozen=True, slots=True)
class Form:
    """The bodies of one path. `fields`: those that go on. `inputs`: those in which an engine looks for media."""

    fields: frozenset[str]
    inputs: frozenset[str]
    model: type[Body] | None = None


FORMS = {
    "/v1/chat/completions": Form(
        (_known(ChatCompletionRequest) | RELAYED) - UNASKED, frozenset({"messages"}), ChatCompletionRequest
    ),
    "/tokenize": Form(_known(TokenizeText) | _known(TokenizeChat), frozenset({"messages"})),
    "/detokenize": Form(_known(Detokenize), frozenset()),
    "/v1/completions": Form(_known(CompletionRequest) - UNASKED, frozenset(), CompletionRequest),
    "/v1/responses": Form(_known(ResponsesRequest) - UNASKED, frozenset({"input", "tools"}), ResponsesRequest),
    "/v1/messages": Form(_known(MessagesRequest), frozenset({"messages", "system"}), MessagesRequest),
}
OTHER = Form(POOLING, POOLING)


def _find_form(path: str) -> Form:
    """Returns the form of a path's bodies. vLLM has more paths below its two generating ones, with the same bodies."""
    return next((form for start, form in FORMS.items() if f"{path}/".startswith(f"{start}/")), OTHER)


def count_sequences(document: dict[str, object]) -> int:
    """Returns how many generations a body asks for at once. Raises InvalidRequest if the count is no plain integer."""
    choices = max(_count(document, "n"), _count(document, "best_of"))
    prompts = document.get("prompt")
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        return choices * len(prompts)
    return choices


def _count(document: dict[str, object], field: str) -> int:
    count = document.get(field)
    if count is None:
        return 1
    # "100000" and 1e5 are numbers to engines that convert.
    if type(count) is not int or not 1 <= count <= MAX_SEQUENCES:
        raise InvalidRequest(f"'{field}' must be an integer from 1 to {MAX_SEQUENCES}.", param=field)
    return count


def find_barred(
    document: dict[str, object], path: str, rules: Mapping[str, AllowSettings | None], pin: str | None
) -> frozenset[str]:
    """Returns the backends barred to this body. Raises InvalidRequest if no other is left, or it is pinned to one.

    `rules` has every backend that takes bodies as they are; one with None takes any.
    """
    refusals = {allow: find_refusal(document, path, allow) for allow in set(rules.values()) if allow is not None}
    barred = {name: refusal for name, allow in rules.items() if allow and (refusal := refusals[allow])}
    if barred and (barred.keys() >= rules.keys() if pin is None else pin in barred):
        raise next(iter(barred.values())) if pin is None else barred[pin]
    return frozenset(barred)


def find_refusal(document: dict[str, object], path: str, allow: AllowSettings) -> InvalidRequest | None:
    """Returns what is wrong with a body for an engine that gets only what is allowed; None if nothing is."""
    form = _find_form(path)
    for name, value in document.items():
        if value is None:
            continue
        refusal = _judge_field(form, name, value, allow)
        if refusal is None and (name in form.inputs or name not in form.fields):
            refusal = _search(_Place(value, name, name), allow)
        if refusal is not None:
            return refusal
    return None


class _Place(NamedTuple):
    """A value in a body, and how it is reached. `key`: its own name, or that of the list that it is in."""

    value: object
    name: str | int
    key: str
    parent: "_Place | None" = None

    @property
    def path(self) -> str:
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps.append(str(place.name)[:MAX_NAME_LENGTH])
            place = place.parent
        return ".".join(steps[:-MAX_STEPS:-1])

    def children(self) -> "Iterator[_Place]":
        """Yields values that hold others or have a key of interest, as few of a body's 200,000 texts and numbers do."""
        if isinstance(self.value, dict):
            for name, child in self.value.items():
                if child is not None and (isinstance(child, HOLDERS) or _is_of_interest(name)):
                    yield _Place(child, name, name, self)
        elif isinstance(self.value, list):
            kinds = (*HOLDERS, str) if _is_of_interest(self.key) else HOLDERS
            for place, child in enumerate(self.value):
                if isinstance(child, kinds):
                    yield _Place(child, place, self.key, self)


def _judge_field(form: Form, name: str, value: object, allow: AllowSettings) -> InvalidRequest | None:
    if name in allow.fields:
        return None
    place = _Place(value, name, name)
    if name not in form.fields:
        return None if _asks_for_nothing(form.model, name, value) else _refuse_field(place, name)
    if name == "chat_template_kwargs" and isinstance(value, dict) and (taken := TAKEN.intersection(value)):
        key = min(taken)
        return _refuse_field(_Place(value[key], key, key, place), name)
    return None


def _asks_for_nothing(model: type[Body] | None, name: str, value: object) -> bool:
    field = None if model is None else model.model_fields.get(name)
    if field is None:
        return False
    is_default = type(value) is type(field.default) and value == field.default
    return is_default or any(note.lets_through(value) for note in field.metadata if isinstance(note, Only))


def _search(top: _Place, allow: AllowSettings) -> InvalidRequest | None:
    """Searches at any depth and in any shape: engines differ in which they read."""
    places = [top]
    while places:
        place = places.pop()
        if _is_of_interest(place.key) and (refusal := _judge(place, allow)) is not None:
            return refusal
        places.extend(place.children())
    return None


def _is_of_interest(key: str) -> bool:
    return key in KEYS_OF_INTEREST or key.endswith("_url")


def _judge(place: _Place, allow: AllowSettings) -> InvalidRequest | None:
    value, key = place.value, place.key
    name = value if key == "type" and isinstance(value, str) else key
    if name in IN_PARTS and name not in allow.fields:
        return _refuse_field(place, name)
    if key.endswith("url") and isinstance(value, str) and not may_fetch(value, allow.media):
        reason = f"'{place.path}' is a URL that the engine may not fetch"
        return _refuse(place, f"{reason}: an operator has to name its scheme or its origin in 'allow.media'")
    return None


def may_fetch(url: str, media: Collection[str]) -> bool:
    """Returns whether `media` has the URL's scheme or its origin: scheme, host, and port if not the scheme's own."""
    scheme, colon, _ = url[:MAX_SCHEME].lower().partition(":")
    if colon and scheme in media:
        return True
    if (found := URL.fullmatch(url)) is None:
        return False
    port = found[3] if found[3] != DEFAULT_PORTS[scheme] else None
    return f"{scheme}://{found[2].lower()}{port or ''}" in media


def _refuse_field(place: _Place, name: str) -> InvalidRequest:
    return _refuse(
        place, f"'{place.path}' does not go on to the engine: an operator has to name '{name}' in 'allow.fields'"
    )


def _refuse(place: _Place, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{reason} of the backend.", param=place.path)
