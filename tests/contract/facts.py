"""engines/trtllm/contract.yaml: options, parameters and tensors of upstream's programs, and where each was read.

In: that file. Out: a Contract, for tests and the programs that stand in for upstream's.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import orjson
import yaml
from pydantic import Field

from engines.recipes.load import UniqueKeyLoader
from engines.recipes.recipe import Section

CONTRACT: Final = Path(__file__).parents[2] / "engines/trtllm/contract.yaml"
# `flag` takes no value, `texts` and `integers` take several, only Python can make an `object`; the upper-case ones are
# Triton's own names of tensors' elements.
Type: TypeAlias = (
    Literal["text", "texts", "integer", "integers", "number", "boolean", "flag", "mapping", "object"]
    | Literal["BOOL", "UINT8", "INT32", "INT64", "UINT64", "FP16", "FP32", "BYTES"]
)
Value: TypeAlias = str | int | float | bool
Source: TypeAlias = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+ \S+@[0-9a-f]{7}$")]


class Fact(Section):
    """One name. `values` are all that it takes; none: any value of its type. `seen` names places, by keys of `sources`.

    `guarded` is for parameters of the C++ backend only: whether the model loads without one. `dims`, without the
    batch's, and `form` are a tensor's.
    """

    type: Type
    values: tuple[Value, ...] = ()
    default: Value | None = None
    required: bool = False
    guarded: bool | None = None
    dims: tuple[int, ...] = ()
    form: Literal["reshaped", "ragged"] | None = None
    seen: Annotated[tuple[str, ...], Field(min_length=1)]


Facts: TypeAlias = Mapping[str, Fact]


class Contract(Section):
    """`sources` are `repository path@commit` by a short name. Options are without their dashes."""

    sources: Mapping[str, Source]
    backend_parameters: Facts
    backend_inputs: Facts
    backend_outputs: Facts
    quantize: Facts
    convert_checkpoint: Facts
    convert_checkpoint_eagle: Facts
    convert_checkpoint_medusa: Facts
    build: Facts
    hf_ptq: Facts
    serve: Facts
    llm_args: Facts
    sampling_params: Facts

    def sections(self) -> Iterator[tuple[str, Facts]]:
        return ((name, facts) for name, facts in self if name != "sources")

    def unproven(self) -> tuple[tuple[str, str], ...]:
        """(section, name) of the facts that were seen in a single stored version."""
        return tuple(
            (section, name) for section, facts in self.sections() for name in facts if self._is_new(facts[name])
        )

    def _is_new(self, fact: Fact) -> bool:
        return len({self.sources[name].rpartition("@")[2] for name in fact.seen}) == 1


@cache
def load_contract() -> Contract:
    return parse_contract(CONTRACT.read_text())


def parse_contract(text: str) -> Contract:
    """Raises ValueError for a document of another form, and for a place that `sources` does not hold."""
    contract = Contract.model_validate_json(orjson.dumps(yaml.load(text, Loader=UniqueKeyLoader)))
    seen = {place for _, facts in contract.sections() for fact in facts.values() for place in fact.seen}
    if unknown := sorted(seen - contract.sources.keys()):
        raise ValueError(f"sources: {', '.join(unknown)} missing")
    return contract
