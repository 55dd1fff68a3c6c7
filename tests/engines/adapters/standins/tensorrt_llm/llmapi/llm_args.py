"""The arguments of LLM: the names of engines/trtllm/contract.yaml, others refused as its own strict models do.

STANDIN_SCHEMA chooses how the kind of a `speculative_config` is recognised: `classvar`, as by the sources of release
1.2's time, or `literal`, as later. The keys are those that the facts were seen with in either.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from tests.contract.facts import load_contract

SCHEMA = os.environ.get("STANDIN_SCHEMA", "classvar")  # noqa: TID251 - read by a test's subprocess
PLACE = {"classvar": "args-00e8cf7", "literal": "args-0004396"}[SCHEMA]
FACTS = load_contract().llm_args
SECTION = "speculative_config"
KINDS = FACTS[f"{SECTION}.decoding_type"].values


def names_of(section: str) -> frozenset[str]:
    """The keys of a section, or with none the arguments."""
    prefix = f"{section}." if section else ""
    return frozenset(
        name.removeprefix(prefix) for name in FACTS if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    )


def check_names(model: str, given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given.keys() - known:
        raise ValueError(f"1 validation error for {model}\n{name}\n  Extra inputs are not permitted")


class DecodingBaseConfig:
    """Of every kind of speculation; the real ones are classes of their own."""

    model_fields: Mapping[str, None] = dict.fromkeys(
        name
        for name in names_of(SECTION)
        if (PLACE in FACTS[f"{SECTION}.{name}"].seen and name != "decoding_type")
        or (SCHEMA == "literal" and name == "decoding_type")
    )

    def __init__(self, **fields: Any) -> None:
        check_names("DecodingBaseConfig", fields, frozenset(self.model_fields))
        self.fields = fields

    @classmethod
    def from_dict(cls, data: dict[str, Any], backend: str | None = None) -> "DecodingBaseConfig":
        """`classvar` only; the kind is taken out of what is given."""
        if (kind := data.pop("decoding_type")) not in KINDS:
            raise ValueError(f"Invalid decoding type: {kind}")
        return cls(**data)


def check_arguments(given: Mapping[str, Any]) -> None:
    """As the strict models do when an LLM is made."""
    check_names("TorchLlmArgs", given, names_of(""))
    for section, value in sections(given):
        check_names(section, value, names_of(section))
    if isinstance(speculation := given.get(SECTION), dict):
        if SCHEMA == "literal" and speculation.get("decoding_type") not in KINDS:
            raise ValueError(f"1 validation error for TorchLlmArgs\n{SECTION}\n  Unable to extract tag")
        DecodingBaseConfig(**speculation)


def sections(given: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The sections whose keys are among the facts."""
    return (
        (name, value) for name, value in given.items() if isinstance(value, dict) and name != SECTION and names_of(name)
    )
