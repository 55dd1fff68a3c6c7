"""What a message may say: text, or parts of it, and which parts only an engine with eyes or ears can read.

Knows OpenAI's content parts; not the messages that hold them.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field

from gateway.api.fields import ITEMS, MOST_ITEMS, TEXT, Labels, WireModel, json_type, refusal, tag

# OpenAI's, then vLLM's: what the token lane has no tokens for.
RELAYED_PARTS = frozenset({
    "image_url",
    "input_audio",
    "file",
    "video_url",
    "audio_url",
    "image_embeds",
    "audio_embeds",
    "prompt_embeds",
})


def _check_part_type(kind: object) -> object:
    if isinstance(kind, str) and (kind in RELAYED_PARTS or kind == "refusal"):
        raise refusal(f"does not support {kind!r} here, only 'text'")
    return kind


class TextPart(WireModel):
    type: Annotated[Literal["text"], BeforeValidator(_check_part_type)]
    text: str
    prompt_cache_breakpoint: Labels | None = None  # no effect by nature


class RefusalPart(WireModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


TEXT_PART, REFUSAL_PART = tag("text part"), tag("refusal part")


def _part_kind(part: object) -> str:
    is_refusal = isinstance(part, dict) and part.get("type") == "refusal"
    return (REFUSAL_PART if is_refusal else TEXT_PART).tag


SpokenPart: TypeAlias = Annotated[
    Annotated[TextPart, TEXT_PART] | Annotated[RefusalPart, REFUSAL_PART], Discriminator(_part_kind)
]
_BY_TYPE = Discriminator(
    json_type, custom_error_type="refused", custom_error_message="must be a string or a list of text parts"
)
_SOME = Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)
Content: TypeAlias = Annotated[Annotated[str, TEXT] | Annotated[list[TextPart], _SOME, ITEMS], _BY_TYPE]
SpokenContent: TypeAlias = Annotated[Annotated[str, TEXT] | Annotated[list[SpokenPart], _SOME, ITEMS], _BY_TYPE]


def plain_content(content: str | Sequence[TextPart | RefusalPart]) -> object:
    return content if isinstance(content, str) else [{"type": "text", "text": part.text} for part in content]


def find_relayed(parts: Sequence[object]) -> int | None:
    """No further than to the first part that validation will refuse."""
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            return None
        if kind in RELAYED_PARTS:
            return place
    return None
