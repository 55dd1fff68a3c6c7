"""What an answer's text must match: OpenAI's `response_format` and vLLM's `structured_outputs`, each made a Guide.

Knows these two fields; not what an engine makes of a guide.
"""

import re
from typing import Annotated, Literal, Self

import orjson
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from gateway.core import Guide, GuideKind
from gateway.wire.fields import (
    JsonObject,
    NonEmpty,
    Only,
    Pattern,
    Refused,
    WireModel,
    absence,
    refusal,
    refuse_bulky,
)
from gateway.wire.guides import schema_guide

MAX_CHOICES = 1024
# What has a meaning of its own in the regular expressions of every guided decoding backend. Not re.escape: it also
# escapes what needs none, and xgrammar knows no escaped space.
METACHARACTERS = re.compile(r"[\\^$.|?*+()\[\]{}]")


class JsonSchema(WireModel):
    """`name` and `description` are for people. `strict`: the schema always binds."""

    name: NonEmpty
    schema_: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[JsonSchema | None, Field(validate_default=True)] = None

    @field_validator("json_schema")
    @classmethod
    def _match_type(cls, schema: JsonSchema | None, info: ValidationInfo) -> JsonSchema | None:
        kind = info.data.get("type", "text" if schema is None else "json_schema")
        if kind == "json_schema" and schema is None:
            raise absence()
        if kind != "json_schema" and schema is not None:
            raise refusal("is only allowed when 'type' is 'json_schema'")
        return schema

    def guide(self) -> Guide | None:
        if self.json_schema is not None:
            return schema_guide(self.json_schema.schema_, "response_format")
        return Guide(GuideKind.JSON) if self.type == "json_object" else None


def _read_schema(schema: object) -> object:
    """Parses a schema that is given as text, which vLLM takes too."""
    if not isinstance(schema, str):
        return schema
    refuse_bulky(schema)
    try:
        return orjson.loads(schema)
    except orjson.JSONDecodeError as exc:
        raise refusal("is not valid JSON") from exc


class StructuredOutputs(WireModel):
    json_: Annotated[JsonObject | None, BeforeValidator(_read_schema), Field(alias="json")] = None
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: Pattern | None = None
    structural_tag: Refused = None
    whitespace_pattern: Refused = None
    disable_any_whitespace: Annotated[object, Only(False)] = None
    disable_additional_properties: Annotated[object, Only(False)] = None

    @model_validator(mode="after")
    def _have_one_kind(self) -> Self:
        kinds = (self.json_, self.json_object or None, self.regex, self.choice, self.grammar)
        if sum(kind is not None for kind in kinds) != 1:
            raise refusal("must have exactly one of json, json_object, regex, choice and grammar")
        return self

    def guide(self) -> Guide:
        if self.json_ is not None:
            return schema_guide(self.json_, "structured_outputs")
        if self.regex is not None:
            return Guide(GuideKind.REGEX, self.regex)
        if self.choice is not None:
            return Guide(GuideKind.REGEX, _any_of(self.choice))
        if self.grammar is not None:
            return Guide(GuideKind.GRAMMAR, self.grammar)
        return Guide(GuideKind.JSON)


def _any_of(choices: list[str]) -> str:
    """Returns a regular expression, which all engines' wires have; they have no list of choices in common."""
    return "(" + "|".join(METACHARACTERS.sub(r"\\\g<0>", choice) for choice in choices) + ")"
