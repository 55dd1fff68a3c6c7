"""docs/api.md lists every field of both endpoints, and the errors, as the code has them."""

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from gateway.anthropic.messages import MessagesRequest
from gateway.errors import (
    CalibrationNotFound,
    CalibrationRunning,
    CalibrationUnavailable,
    GatewayError,
    InvalidRequest,
    LastBackend,
    MethodNotAllowed,
    NeedRefused,
    PolicyChanged,
)
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.responses import ResponsesRequest
from gateway.wire.body import Body, parse_body
from gateway.wire.errors import error_headers
from gateway.wire.fields import Only

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()
OWN_PAGES = {"messages": (DOCS / "messages.md").read_text(), "responses": (DOCS / "responses.md").read_text()}
ENDPOINTS = [
    pytest.param(ChatCompletionRequest, "chat", id="chat"),
    pytest.param(CompletionRequest, "completions", id="text"),
    pytest.param(MessagesRequest, "messages", id="messages"),
    pytest.param(ResponsesRequest, "responses", id="responses"),
]


def read_rows(section: str, endpoint: str) -> list[tuple[str, str]]:
    """Each field of the section that the endpoint has, with the next cell of its row."""
    text = OWN_PAGES.get(endpoint, PAGE).split(f"\n## {section}\n")[1].split("\n## ")[0].split("\n### ")[0]
    if endpoint in OWN_PAGES:
        return re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|", text, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)` \| (both|chat|completions) \| ?(.*?) ?\|", text, re.MULTILINE)
    return [(field, cell) for field, where, cell in rows if where in {"both", endpoint}]


def documented(section: str, endpoint: str) -> set[str]:
    return {field for field, _ in read_rows(section, endpoint)}


def refused(body_type: type[Body]) -> set[str]:
    fields = body_type.model_fields.items()
    return {name for name, field in fields if any(isinstance(note, Only) for note in field.metadata)}


@pytest.mark.parametrize(("body_type", "endpoint"), ENDPOINTS)
def test_every_field_is_in_the_documentation(body_type: type[Body], endpoint: str) -> None:
    sections = [documented(section, endpoint) for section in ("Honoured", "No effect", "Refused")]
    assert set.union(*sections) == set(body_type.model_fields)
    assert sum(map(len, sections)) == len(body_type.model_fields)


def read_neutral_values(endpoint: str) -> dict[str, object]:
    """By refused field, the value that asks for nothing; some have none."""
    cells = ((field, re.match("`(.+?)`", cell)) for field, cell in read_rows("Refused", endpoint))
    return {field: orjson.loads(found[1]) for field, found in cells if found}


@pytest.mark.parametrize(("body_type", "endpoint"), ENDPOINTS)
def test_the_documented_value_of_a_refused_field_passes_and_no_other(body_type: type[Body], endpoint: str) -> None:
    required: dict[str, object] = {
        "model": "tiny",
        "prompt": "Hello",
        "messages": [{"role": "user", "content": "Hello"}],
        "input": "Hello",
        "max_tokens": 2000,
    }
    taken = set(body_type.model_fields) - refused(body_type)
    required = {name: value for name, value in required.items() if name in taken}
    values = read_neutral_values(endpoint)
    assert parse_body(body_type, {**required, **values}).needs() == {}
    for field in refused(body_type) - {"audio"}:  # which is relayed
        with pytest.raises(InvalidRequest, match=f"'{field}' is not supported") as caught:
            parse_body(body_type, {**required, field: "something"})
        assert caught.value.param == field


@pytest.mark.parametrize(("body_type", "endpoint"), ENDPOINTS)
def test_refused_fields_are_documented_as_such(body_type: type[Body], endpoint: str) -> None:
    assert documented("Refused", endpoint) == refused(body_type)


OPERATORS = {PolicyChanged, LastBackend, CalibrationRunning, CalibrationNotFound, CalibrationUnavailable}


def test_the_table_of_errors_is_the_taxonomy() -> None:
    """Statuses, codes, and which errors have a retry-after."""
    rows = re.findall(r"^\| (\d{3}) \| (.+?) \|(.*)\|$", PAGE.split("\n## Errors\n")[1], re.MULTILINE)
    documented = [
        (int(status), code, "`retry-after`" in when)
        for status, codes, when in rows
        for code in re.findall(r"\w+", codes)
    ]
    assert sorted(documented) == sorted(map(describe, find_errors(GatewayError)))


def find_errors(kind: type[GatewayError]) -> Iterator[GatewayError]:
    """One of each kind that an answer may hold; the operator's own routes have a page of theirs."""
    for inner in kind.__subclasses__():
        if inner not in OPERATORS and not issubclass(inner, NeedRefused):
            yield inner("GET", "x") if inner is MethodNotAllowed else inner("x")
            yield from find_errors(inner)


def describe(error: GatewayError) -> tuple[int, str, bool]:
    return error.status, error.code, any(name == b"retry-after" for name, _ in error_headers(error))
