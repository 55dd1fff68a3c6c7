"""What an operator declares about the backends: memory that decoding reads, GPUs, and what the engines do not report.

In: a file, measured times per token. Out: shares of the memory's bandwidth, which no engine can exceed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from loadtest.results.system import Engines

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One backend's hardware. `weights_gb`: what every step reads, over all GPUs (of a mixture of experts the weights
    for one token). `bandwidth_gb_s`: that of one GPU's memory, by its data sheet. `gpus`: how many share the weights
    (TP); one where it is not declared. `engine`: what else identifies the engine, by any names.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    weights_gb: Positive | None = None
    bandwidth_gb_s: Positive | None = None
    gpus: Annotated[int, Field(ge=1)] | None = None
    engine: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.weights_gb is None) != (self.bandwidth_gb_s is None):
            raise ValueError("weights_gb and bandwidth_gb_s are declared together or not at all")

    def find_bandwidth_share(self, tpot_s: float) -> float | None:
        """Returns the share of the memory's bandwidth that reading the weights takes at this time per token, with one
        request in flight; None where it was not declared.
        """
        if self.weights_gb is None or self.bandwidth_gb_s is None:
            return None
        return self.weights_gb / (self.bandwidth_gb_s * (self.gpus or 1)) / tpot_s


Declared: TypeAlias = Mapping[str, Hardware]
_ADAPTER = TypeAdapter(dict[str, Hardware])


def read_hardware(path: Path) -> Declared:
    """Reads the declared hardware, by backend. Raises ValueError that names the field."""
    try:
        return _ADAPTER.validate_python(yaml.safe_load(path.read_text()) or {})
    except yaml.YAMLError as exc:
        raise ValueError(f"{path} is not YAML: {exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc


def list_gpus(declared: Declared | None) -> Mapping[str, int]:
    """Returns the declared numbers of GPUs, by backend."""
    return {backend: each.gpus for backend, each in (declared or {}).items() if each.gpus is not None}


def find_contradiction(declared: Declared, engines: Engines, backends: Collection[str]) -> str | None:
    """Names the first field that the engine reports otherwise, or a backend that does not exist; None if neither."""
    for backend, hardware in declared.items():
        if backend not in backends:
            return f"{backend} was declared, and the backends are {' and '.join(backends)}"
        reported = engines.get(backend, {})
        for name, value in hardware.engine.items():
            if name in reported and reported[name] != value:
                return f"{backend}'s {name} was declared as {value}, and the engine says {reported[name]}"
    return None
