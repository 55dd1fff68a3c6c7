"""What decoding reads from a GPU's memory, as a share of the bandwidth, which no engine can exceed.

In: a file in which an operator declares it, measured times per token. Out: shares of the bandwidth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One backend's. `weights_gb`: read once for every step, all GPUs together (of a mixture of experts those of one
    token); `bandwidth_gb_s`: of one GPU's memory, by its data sheet; `gpus`: that share the weights (TP).
    """

    __pydantic_config__: ClassVar[ConfigDict] = {"extra": "forbid"}

    weights_gb: Positive
    bandwidth_gb_s: Positive
    gpus: Annotated[int, Field(ge=1)] = 1

    def used(self, tpot_s: float) -> float:
        """Share of the bandwidth that weights alone take at this time per token, for one request at a time."""
        return self.weights_gb / (self.bandwidth_gb_s * self.gpus) / tpot_s


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
