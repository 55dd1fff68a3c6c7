"""How one wire field behaves: strict models that drop nothing silently, values that are refused by name, unions.

Used by the request bodies; knows no field of OpenAI's in particular.
"""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def refusal(message: str) -> PydanticCustomError:
    """An error whose message reaches the client behind the field's name: "'tools' is not supported yet"."""
    return PydanticCustomError("refused", "{message}", {"message": message})


class WireModel(BaseModel):
    """A JSON object from a client: unknown keys are errors, "8" is not 8, null means absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: object) -> object:
        # Generated clients send every optional field, most of them null. An unknown one stays, to be refused.
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None or name not in cls.model_fields}


class Only:
    """Annotation: lets through the values that ask for nothing; any other asks for what is not supported yet."""

    def __init__(self, *neutral: object) -> None:
        self._neutral = neutral

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def _check(self, value: object) -> object:
        # By type too: True equals 1, yet `n: true` is a mistake that deserves its answer.
        if any(type(value) is type(neutral) and value == neutral for neutral in self._neutral):
            return value
        raise refusal("is not supported yet")


Refused: TypeAlias = Annotated[None, Only()]


def _refuse_empty(text: object) -> object:
    if text == "":
        raise refusal("must not be an empty string")
    return text


NonEmpty: TypeAlias = Annotated[str, BeforeValidator(_refuse_empty)]


def _refuse_many(labels: object) -> object:
    if (
        isinstance(labels, dict) and len(labels) > 16
    ):  # OpenAI's limit; pydantic's own counts after checking every value
        raise refusal("must not have more than 16 entries")
    return labels


Labels: TypeAlias = Annotated[dict[str, str], BeforeValidator(_refuse_many)]


# A union is told apart by the JSON type before it is validated, so that an error names the client's own path. pydantic
# puts the tags into that path; parse.py takes them out again.
TEXT, ITEMS = Tag("<text>"), Tag("<items>")
UNION_TAGS = frozenset({TEXT.tag, ITEMS.tag})
_TAG_OF_TYPE: Mapping[type, str] = {str: TEXT.tag, list: ITEMS.tag}


def text_or_items(value: object) -> str | None:
    """Discriminator of `str | list[...]`."""
    return _TAG_OF_TYPE.get(type(value))
