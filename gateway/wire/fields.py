"""How one wire field behaves: strict models that drop nothing silently, values that are refused by name, unions.

Used by the request bodies; knows no field of OpenAI's in particular.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gateway.json_limits import exceeds

# More than any context holds. Each costs microseconds to check, on a thread that shares the interpreter with the loop.
MAX_ITEMS = 32_768
# Templates and engines walk a client's JSON by recursion; OpenAI's own limit for schemas is 10 levels of objects.
MAX_LEVELS = 64


def refusal(message: str) -> PydanticCustomError:
    """Returns an error whose message reaches the client behind the field's name: "'suffix' is not supported"."""
    return PydanticCustomError("refused", "{message}", {"message": message})


def absence() -> PydanticCustomError:
    """Returns the error for a missing field that only other fields make necessary."""
    return PydanticCustomError("missing", "Field required")


class WireModel(BaseModel):
    """A JSON object from a client: unknown keys are errors, "8" is not 8, null means absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: object) -> object:
        # Generated clients send every optional field, most of them null. An unknown one stays, to be refused.
        if not isinstance(fields, dict) or None not in fields.values():
            return fields
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {name: value for name, value in fields.items() if value is not None or name not in known}


class Only:
    """An annotation that lets through values that ask for nothing; any other asks for what is not supported."""

    def __init__(self, *neutral: object) -> None:
        self._neutral = neutral

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def lets_through(self, value: object) -> bool:
        # By type too: True equals 1, yet `n: true` is a mistake that deserves its answer.
        return any(type(value) is type(neutral) and value == neutral for neutral in self._neutral)

    def _check(self, value: object) -> object:
        if self.lets_through(value):
            return value
        raise refusal("is not supported")


Refused: TypeAlias = Annotated[None, Only()]


def _refuse_empty(text: object) -> object:
    if text == "":
        raise refusal("must not be an empty string")
    return text


NonEmpty: TypeAlias = Annotated[str, BeforeValidator(_refuse_empty)]
# Matching is prepared per stop string and character, on the event loop: 8 MB of them held up every stream for 0.8 s.
MAX_STOP_CHARACTERS = 4096


def _refuse_long(text: object) -> object:
    if isinstance(text, str) and len(text) > MAX_STOP_CHARACTERS:
        raise refusal(f"must not be longer than {MAX_STOP_CHARACTERS} characters")
    return text


StopText: TypeAlias = Annotated[NonEmpty, BeforeValidator(_refuse_long)]
# What an engine compiles: more of it takes seconds there.
Pattern: TypeAlias = Annotated[NonEmpty, Field(max_length=65_536)]


def _refuse_many(labels: object) -> object:
    # OpenAI's limit; pydantic's own counts after checking every value
    if isinstance(labels, dict) and len(labels) > 16:
        raise refusal("must not have more than 16 entries")
    return labels


Labels: TypeAlias = Annotated[dict[str, str], BeforeValidator(_refuse_many)]


def _refuse_huge(value: object) -> object:
    """Refuses too many values or levels. Goes level by level, since too deep a value would break recursion."""
    level, values, levels = [value], 0, 0
    while level:
        values, levels = values + len(level), levels + 1
        if values > MAX_ITEMS:
            raise refusal(f"must not hold more than {MAX_ITEMS} values")
        if levels > MAX_LEVELS:
            raise refusal(f"must not be nested deeper than {MAX_LEVELS} levels")
        level = [child for parent in level for child in _children(parent)]
    return value


def refuse_bulky(text: str) -> None:
    """Refuses too many values of JSON in a string, before it is parsed. An object has a key for each value."""
    if exceeds(text.encode(errors="replace"), 2 * MAX_ITEMS, MAX_ITEMS):
        raise refusal(f"must not hold more than {MAX_ITEMS} values")


def _children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


JsonObject: TypeAlias = Annotated[dict[str, object], BeforeValidator(_refuse_huge)]


def refuse_type(kind: object) -> object:
    """Refuses a part or an item by the type that it names; what is no text is pydantic's to refuse."""
    if isinstance(kind, str):
        raise refusal(f"does not support {kind[:100]!r} here")
    return kind


def check_tool_type(kind: object) -> object:
    if kind == "custom":
        raise refusal("does not support 'custom' tools, only 'function'")
    return kind


# A union's member is chosen by JSON type before validation, so that an error names the client's own path. pydantic
# puts the tags into that path; parse.py takes them out again, by the character that they end in.
TAG_MARK = "\0"


def tag(name: str) -> Tag:
    return Tag(name + TAG_MARK)


TEXT, ITEMS, OBJECT = tag("text"), tag("items"), tag("object")
_TAG_OF_TYPE: Mapping[type, str] = {str: TEXT.tag, list: ITEMS.tag, dict: OBJECT.tag}


def json_type(value: object) -> str | None:
    """Returns the tag of the value's JSON type, for unions like `str | list[...]` and `str | SomeModel`."""
    return _TAG_OF_TYPE.get(type(value))


def by_type(message: str, find: Callable[[object], str | None] = json_type) -> Discriminator:
    """Chooses a union's member by its JSON type, or as `find` does; `message` refuses what is none of them."""
    return Discriminator(find, custom_error_type="refused", custom_error_message=message)


def by_field(name: str, tags: Mapping[str, Tag], other: Tag) -> Discriminator:
    """Chooses a union's member by the text in one field of an object; `other` where there is none of these."""

    def find(value: object) -> str:
        text = value.get(name) if isinstance(value, dict) else None
        return (tags.get(text, other) if isinstance(text, str) else other).tag

    return Discriminator(find)
