"""docs/configuration.md and docs/routing.md against the code: the example loads, every key has a row."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.configuration import parse_settings
from gateway.configuration.load import OVERRIDES
from gateway.core import Need
from gateway.engine_kinds import ENGINE_KINDS
from gateway.routing.policies import POLICIES
from gateway.settings import (
    AllowSettings,
    EvidenceSettings,
    LimitSettings,
    ModelSettings,
    MoveSettings,
    ProbeSettings,
    QueueSettings,
    ResponseSettings,
    Settings,
    StreamSettings,
)

DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION, ROUTING = ((DOCS / f"{name}.md").read_text() for name in ("configuration", "routing"))
# The heading of a table, the prefix of its keys, and the section of the file; Any: any frozen dataclass.
TABLES: list[tuple[str, str, type[Any]]] = [
    ("## The whole gateway", "", Settings),
    ("## The whole gateway", "limits.", LimitSettings),
    ("## The whole gateway", "probe.", ProbeSettings),
    ("## The whole gateway", "evidence.", EvidenceSettings),
    ("## The whole gateway", "streams.", StreamSettings),
    ("## The whole gateway", "moves.", MoveSettings),
    ("## The whole gateway", "responses.", ResponseSettings),
    ("## A model", "", ModelSettings),
    ("## A model", "queue.", QueueSettings),
    ("### Which parts of a relayed body are sent", "allow.", AllowSettings),
    *((f"### A backend of kind `{kind}`", "", ENGINE_KINDS[kind].settings) for kind in ENGINE_KINDS),
    *((f"## The policy `{kind}`", "", POLICIES[kind]) for kind in POLICIES),
]
WITHOUT_A_ROW = {
    "limits",
    "probe",
    "evidence",
    "streams",
    "moves",
    "queue",
    "responses",
    "name",
}  # sections, and a backend's own key


def has_row(table: str, key: str, default: object) -> bool:
    """One that names the key, beside others perhaps, with its default if that is a plain value."""
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    shown = rf"(`{re.escape(str(default))}`|as above)" if is_plain else r"[^|]+"
    return re.search(rf"^\|[^|]*`{re.escape(key)}`[^|]*\| {shown} \|", table, re.MULTILINE) is not None


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", CONFIGURATION, re.DOTALL)
    assert example is not None
    document = yaml.safe_load(example[1])
    document["models"][0]["tokenizer"] = str(tmp_path)
    assert parse_settings(document, environ={}).models[0].id == "llama-3.1-8b"


@pytest.mark.parametrize(("heading", "prefix", "section"), TABLES, ids=[f"{table[0]} {table[1]}" for table in TABLES])
def test_every_key_has_a_row_with_its_default(heading: str, prefix: str, section: type[Any]) -> None:
    _, _, rest = (CONFIGURATION + ROUTING).partition(f"\n{heading}\n")
    table = re.split(r"\n##+ ", rest)[0]
    keys = {field.name: field.default for field in fields(section) if field.name not in WITHOUT_A_ROW}
    assert [key for key, default in keys.items() if not has_row(table, prefix + key, default)] == []


@pytest.mark.parametrize("need", Need)
def test_every_need_can_be_corrected(need: Need) -> None:
    assert f"\n| `{need}` | " in CONFIGURATION


@pytest.mark.parametrize("variable", ["CROSSOVER_CONFIG", *OVERRIDES])
def test_every_variable_has_a_row(variable: str) -> None:
    assert f"| `{variable}` |" in CONFIGURATION
