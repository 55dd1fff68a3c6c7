"""docs/configuration.md against the code: its example loads, and it names every key with its default."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from gateway.core import Need
from gateway.settings import parse_settings
from gateway.settings.file import (
    AllowSection,
    ConfigurationFile,
    EvidenceSection,
    LimitSection,
    ModelSection,
    PolicySection,
    ProbeSection,
    StreamSection,
    TritonSection,
    VLLMCapabilities,
    VLLMSection,
)
from gateway.settings.load import OVERRIDES

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
SECTIONS: dict[str, type[BaseModel]] = {
    "": ConfigurationFile,
    "limits.": LimitSection,
    "probe.": ProbeSection,
    "evidence.": EvidenceSection,
    "streams.": StreamSection,
    "model": ModelSection,
    "triton": TritonSection,
    "vllm": VLLMSection,
    "allow.": AllowSection,
    "capabilities": VLLMCapabilities,
    "policy": PolicySection,
}
KEYS = {
    (prefix if prefix.endswith(".") else "") + key
    for prefix, section in SECTIONS.items()
    for key in section.model_fields
    if key not in {"limits", "probe", "evidence", "streams"} and not (prefix in {"triton", "vllm"} and key == "kind")
}


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    example = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    document = yaml.safe_load(example[1])
    document["models"][0]["tokenizer"] = str(tmp_path)
    assert parse_settings(document, environ={}).models[0].id == "llama-3.1-8b"


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_has_a_row(key: str) -> None:
    assert re.search(rf"^\|[^|]*`{re.escape(key)}`", TEXT, re.MULTILINE)


@pytest.mark.parametrize("prefix", ["", "limits.", "probe.", "evidence.", "model", "triton", "policy"])
def test_every_plain_default_is_the_one_documented(prefix: str) -> None:
    for key, field in SECTIONS[prefix].model_fields.items():
        if isinstance(field.default, str | int | float):
            name = prefix * prefix.endswith(".") + key
            assert f"`{name}` | `{field.default}` |" in TEXT


def test_every_need_can_be_corrected() -> None:
    assert set(VLLMCapabilities.model_fields) == {need.value for need in Need}


@pytest.mark.parametrize("variable", ["CROSSOVER_CONFIG", *OVERRIDES])
def test_every_variable_has_a_row(variable: str) -> None:
    assert f"| `{variable}` |" in TEXT
