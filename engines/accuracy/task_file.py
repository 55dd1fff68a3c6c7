"""A user's task file: JSON lines in, items out. docs/accuracy.md has the format.

Raises CannotMeasure with the line and the field. Knows no endpoint.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Choice, FreeText, Item

Text = Annotated[str, Field(min_length=1)]


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    task: Text = "items"
    id: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[dict[str, object]], Field(min_length=1)] | None = None
    choices: Annotated[list[Text], Field(min_length=2)] | None = None
    by_byte: bool = False
    answer: int | str | Annotated[list[Text], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 256
    stop: Annotated[list[Text], Field(max_length=4)] = []
    extract: Text | None = None

    @field_validator("extract")
    @classmethod
    def check_pattern(cls, extract: str | None) -> str | None:
        try:
            re.compile(extract or "")
        except re.error as exc:
            raise ValueError(f"is no regular expression: {exc}") from exc
        return extract

    @model_validator(mode="after")
    def check_form(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("an item has either a prompt or messages")
        if self.choices is not None:
            self._check_choices(self.choices)
        elif isinstance(self.answer, int):
            raise ValueError("answer: without choices it is a text, or a list of texts; quote a number")
        elif self.by_byte:
            raise ValueError("by_byte: only choices are compared by their bytes")
        return self

    def _check_choices(self, choices: list[str]) -> None:
        if self.prompt is None:
            raise ValueError("choices are continuations of a prompt: messages cannot be continued")
        if not isinstance(self.answer, int) or not 0 <= self.answer < len(choices):
            raise ValueError(f"answer: with choices it is the place of the right one, 0 to {len(choices) - 1}")
        unused = sorted({"max_tokens", "stop", "extract"} & self.model_fields_set)
        if unused:
            raise ValueError(f"{unused[0]}: of no use with choices, for nothing is written")

    def to_item(self, name: str) -> Item:
        prompt = self.prompt if self.prompt is not None else tuple(self.messages or ())
        return Item(self.id or name, self.task, prompt, self._to_wanted())

    def _to_wanted(self) -> Choice | FreeText:
        if isinstance(self.answer, int):
            return Choice(tuple(self.choices or ()), self.answer, self.by_byte)
        texts = (self.answer,) if isinstance(self.answer, str) else tuple(self.answer)
        return FreeText(texts, self.max_tokens, tuple(self.stop), self.extract)


def read_tasks(path: Path) -> list[Item]:
    """Reads items. Raises CannotMeasure without a file, or with number and field of the first line that is no item."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise CannotMeasure(f"{path}: {exc}") from exc
    items = list(_parse(path, lines))
    if not items:
        raise CannotMeasure(f"{path}: holds no item")
    return items


def _parse(path: Path, lines: list[str]) -> Iterator[Item]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            try:
                yield Line.model_validate_json(text).to_item(f"line {number}")
            except ValidationError as exc:
                raise CannotMeasure(f"{path}, line {number}: {_describe(exc)}") from exc


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    return f"{field}: {first['msg']}" if field else first["msg"]
