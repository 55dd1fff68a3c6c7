"""What a calibration measured of a node: its two engines by their physics, and what they do to each other.

In: JSON. Out: a NodeModel, or an error that names the key. Knows no request and no clock.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, with_config

from engines.physics import EngineModel
from gateway.settings import FORM, make_problem, number

OLDER = "is of an older form, which held for one shape of requests; `crossover calibrate --apply` makes a new one"


def is_older(node: Any) -> bool:  # Any: JSON
    """Whether it is a node model as earlier versions made it."""
    return isinstance(node, Mapping) and any(_is_older_engine(node.get(name)) for name in ("low", "high"))


def _is_older_engine(engine: object) -> bool:
    return isinstance(engine, Mapping) and "prefill_tokens_per_s" in engine


def _check_form(engine: Any) -> Any:  # Any: what a client or a file holds
    if _is_older_engine(engine):
        raise make_problem(OLDER)
    return engine


Engine = Annotated[EngineModel, BeforeValidator(_check_form)]
Intervals = Mapping[str, tuple[float, float] | Mapping[str, tuple[float, float]]]


@with_config(FORM)
@dataclass(frozen=True)
class NodeModel:
    """A pair of engines, `low` and `high`, by the names of a policy's backends.

    `interference`: how many times its own time a step takes longer while both work: 0 on GPUs of their own, 1 where
    they slice the time of the same ones. `move_s`: what a move costs besides the prefill that it causes.
    `prompt_tokens`, `answer_tokens`: of the first shape that it was measured with. `low_error`, `high_error`: by how
    much the model missed a shape that it had not been fitted to, as the logarithm of predicted over measured.
    `intervals`: of its numbers, for readers.
    """

    low: Engine
    high: Engine
    interference: Annotated[float, number(0, 4)]
    prompt_tokens: Annotated[int, number(1, 10_000_000)]
    answer_tokens: Annotated[int, number(1, 10_000_000)]
    move_s: Annotated[float, number(0, 60)] = 0.05
    low_error: Annotated[float, number(0, 10)] = 0.0
    high_error: Annotated[float, number(0, 10)] = 0.0
    intervals: Annotated[Intervals | None, Field()] = None

    def __iter__(self) -> Iterator[EngineModel]:
        return iter((self.low, self.high))
