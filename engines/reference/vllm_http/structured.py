"""vLLM's fields for structured output, and its checks of them in its words.

In: parsed JSON. Out: a Guide, or a WireError. Whether a guide is a valid grammar is checked by the model.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from engines.reference.guide import Guide
from engines.reference.vllm_http.errors import Invalid, invalid_body

MAX_NESTING = 64


class StructuredOutputs(BaseModel):
    """The kinds of constraint; exactly one is set. vLLM's other fields are for backends other than llguidance."""

    schema_: str | dict[str, Any] | None = Field(None, alias="json")  # a JSON schema: any values
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    @model_validator(mode="after")
    def is_one(self) -> "StructuredOutputs":
        given = {name: value for name, value in self.model_dump(by_alias=True).items() if value is not None}
        if len(given) > 1:
            message = "You can only use one kind of structured outputs constraint but multiple are specified: "
            raise Invalid(f"{message}{given}")
        if not given:
            raise Invalid("You must use one kind of structured outputs constraint but none are specified: {}")
        if self.structural_tag is not None:
            raise Invalid("`structural_tag` is not supported by the reference engine.")
        return self

    def to_guide(self) -> Guide:
        self._check()
        if self.schema_ is not None:
            schema = self.schema_ if isinstance(self.schema_, str) else json.dumps(self.schema_)
            return Guide("json_schema", schema)
        if self.regex is not None:
            return Guide("regex", self.regex)
        if self.choice is not None:
            return Guide("choice", json.dumps(self.choice))
        return Guide("json") if self.grammar is None else Guide("ebnf_grammar", self.grammar)

    def _check(self) -> None:
        for is_wrong, message in (
            (self.choice == [], "Choice '[]' cannot be an empty list"),
            (is_blank(self.grammar), "structured_outputs.grammar cannot be an empty string"),
            (is_blank(self.schema_), "structured_outputs.json cannot be an empty string"),
            (
                nests_deeper(self.schema_, MAX_NESTING),
                f"The JSON schema is nested too deeply: objects and arrays may nest at most {MAX_NESTING} levels",
            ),
            (self.json_object is False, "structured_outputs.json_object must be True if set"),
            ("\x00" in (self.regex or ""), "structured_outputs.regex must not contain a NUL character ('\\x00')"),
        ):
            if is_wrong:
                raise Invalid(message)


class JsonSchema(BaseModel):
    name: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # a JSON schema: any values


class ResponseFormat(BaseModel):
    """OpenAI's field for structured output, on /v1/completions."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def over(self, structured: StructuredOutputs | None) -> StructuredOutputs | None:
        """Adds this format's constraint to `structured`, so that a second kind is refused as one too many."""
        if self.type == "text":
            return structured
        if self.type == "json_object":
            asked: dict[str, object] = {"json_object": True}
        elif self.json_schema is None:
            raise Invalid("type json_schema: the 'json_schema' field must be provided.", "response_format")
        else:
            asked = {"json": self.json_schema.schema_}
        present = {} if structured is None else structured.model_dump(by_alias=True)
        try:
            return StructuredOutputs.model_validate(present | asked)
        except ValidationError as exc:
            raise invalid_body(exc) from exc


def is_blank(text: object) -> bool:
    return isinstance(text, str) and not text.strip()


def nests_deeper(document: object, limit: int) -> bool:
    """Whether objects and arrays of a JSON document, or of its text, are nested more than `limit` levels deep."""
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except RecursionError:
            return True
        except ValueError:
            return False  # refused where it is read as a schema
    level = [document]
    for _ in range(limit):
        level = [child for node in level for child in members(node) if isinstance(child, (dict, list))]
    return bool(level)


def members(node: object) -> list[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
