"""vLLM's sampling fields, translated before they reach the engine, as tables."""

from typing import Any

import pytest

from engines.reference.sampling import SamplingParams
from engines.reference.vllm_http.sampling import Sampling
from engines.reference.vllm_http.structured import nests_deeper


def params_of(**fields: Any) -> SamplingParams:  # any JSON values
    return Sampling.model_validate(fields).to_params((2, 0), 8)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1e-6}, "temperature", 0.01),
        ({"temperature": 0.5}, "temperature", 0.5),
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", -2),
        ({"logit_bias": {"5": 250, "6": -250, "7": 1.5}}, "logit_bias", ((5, 100.0), (6, -100.0), (7, 1.5))),
        ({"logprobs": 0}, "logprobs", 0),
        ({"min_p": None}, "min_p", 0.0),
        ({}, "end_ids", (2, 0)),
    ],
)
def test_values_are_read_as_vllm_reads_them(fields: dict[str, Any], name: str, value: object) -> None:
    assert getattr(params_of(**fields), name) == value


def test_nesting_is_counted_in_objects_and_arrays() -> None:
    for document in ({"a": [1]}, "[[1]]"):
        assert (nests_deeper(document, 2), nests_deeper(document, 1)) == (False, True)
    assert nests_deeper("[" * 100_000, 64)
    assert not nests_deeper("{", 1)
