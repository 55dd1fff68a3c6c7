"""What an operator declares of the backends: what decoding reads from memory, and what the engines do not tell.

In: a file, measured times per token. Out: shares of the memory's bandwidth, which no engine can exceed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from loadtest.engines import Engines

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One backend's. `weights_gb`: read once for every step, all GPUs together (of a mixture of experts those of one
    token); `bandwidth_gb_s`: of one GPU's memory, by its data sheet; `gpus`: that share the weights (TP), one
    where it is not told. `engine`: what else identifies it, by any names.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    weights_gb: Positive | None = None
    bandwidth_gb_s: Positive | None = None
    gpus: Annotated[int, Field(ge=1)] | None = None
    engine: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.weights_gb is None) != (self.bandwidth_gb_s is None):
            raise ValueError("weights_gb and bandwidth_gb_s say something together only")

    def used(self, tpot_s: float) -> float | None:
        """Share of the bandwidth that weights alone take at this time per token, for one request at a time; None where
        it was not declared.
        """
        if self.weights_gb is None or self.bandwidth_gb_s is None:
            return None
        return self.weights_gb / (self.bandwidth_gb_s * (self.gpus or 1)) / tpot_s


Declared: TypeAlias = Mapping[str, Hardware]
_ADAPTER = TypeAdapter(dict[str, Hardware])


def read_hardware(path: Path) -> Declared:
    """By backend. Raises ValueError that names the field."""
    try:
        return _ADAPTER.validate_python(yaml.safe_load(path.read_text()) or {})
    except yaml.YAMLError as exc:
        raise ValueError(f"{path} is not YAML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc


def find_contradiction(declared: Declared, engines: Engines, backends: Collection[str]) -> str | None:
    """What of a declaration cannot be, beside what the engines tell themselves."""
    for backend, hardware in declared.items():
        if backend not in backends:
            return f"{backend} was declared, and the backends are {' and '.join(backends)}"
        told = engines.get(backend, {})
        for name, value in hardware.engine.items():
            if name in told and told[name] != value:
                return f"{backend}'s {name} was declared as {value}, and the engine says {told[name]}"
    return None
