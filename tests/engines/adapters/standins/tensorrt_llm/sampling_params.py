"""SamplingParams and GuidedDecodingParams: the fields and defaults of engines/trtllm/contract.yaml, others refused."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from tests.contract.facts import load_contract

FACTS = load_contract().sampling_params


def declared(prefix: str) -> Iterator[tuple[str, object, Any]]:
    """(name, type, default) of the fields whose names begin so and have no dot beyond."""
    for name, fact in FACTS.items():
        own = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in own:
            yield own, object, field(default=fact.default)


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams(make_dataclass("Guides", declared("guided_decoding."), slots=True, kw_only=True)):  # type: ignore[misc]  # made of facts
    def __post_init__(self) -> None:
        if sum(bool(getattr(self, field.name)) for field in fields(self)) > 1:
            raise ValueError("Only one guide can be used for a request")


@dataclass(slots=True, kw_only=True)
class SamplingParams(make_dataclass("Fields", declared(""), slots=True, kw_only=True)):  # type: ignore[misc]  # made of facts
    """None is the runtime's own default."""

    @property
    def is_greedy(self) -> bool:
        """As `_greedy_decoding` there: neither a top_k but 1 nor a top_p but 0."""
        return self.top_k in {None, 1} and self.top_p in {None, 0.0}
