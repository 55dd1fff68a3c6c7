"""The TensorRT-LLM adapter on a stand-in for tensorrt_llm: its documented signatures, before the reference engine."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.adapters.outputs import UNTOLD
from engines.reference.engine import Engine
from tests.engines.adapters.cases import OTHERS, SAME, ask, check_refused_guide, check_same, check_seeds, complete
from tests.engines.wires.servers import ROOT, WEIGHTS

STANDINS = ROOT / "tests/engines/adapters/standins"
NOTHING: Mapping[str, Any] = {}
EXECUTORS: Mapping[str, dict[str, str]] = {
    "keeps the end token and tells three at once": {"STANDIN_TOKENS": "3"},
    "returns the end token": {"STANDIN_RETURNS_END": "1"},
}


def tell(
    folder: Path, arguments: Mapping[str, Any], named: Mapping[str, Any] = NOTHING, **variables: str
) -> dict[str, Any]:
    (folder / "engine.json").write_text(json.dumps(arguments))
    parameters = {
        "model_dir": str(WEIGHTS),
        "engine_args": str(folder / "engine.json"),
        "guided_decoding_backend": "llguidance",
        "lora_prefetch_dir": str(folder / "loras"),
    }
    (folder / "loras/3").mkdir(parents=True)
    (folder / "loras/3/adapter_config.json").touch()
    variables |= {"PYTHONPATH": f"{ROOT}:{STANDINS}"}
    return ask([sys.executable, "tensorrt_llm"], parameters, named, **variables)


@pytest.fixture(scope="module", params=EXECUTORS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return tell(
        tmp_path_factory.mktemp("trtllm"), {"max_batch_size": 32}, {**SAME, **OTHERS}, **EXECUTORS[request.param]
    )


@pytest.mark.parametrize("case", SAME)
def test_answer_is_the_reference_engines_whatever_the_executor_does_with_the_end_token(
    told: dict[str, Any], engine: Engine, case: str
) -> None:
    expected = complete(engine, case)
    answer = told["answers"][case]
    if expected[-1].finish_reason == "stop" and answer["ids"][-1] == UNTOLD:
        answer = {**answer, "ids": [*answer["ids"][:-1], expected[-1].token_id]}
    check_same(answer, expected)


def test_seed_decides_a_sampled_answer_the_largest_included(told: dict[str, Any]) -> None:
    check_seeds(told)


def test_guide_that_is_none_fails_its_request_alone(told: dict[str, Any]) -> None:
    check_refused_guide(told)


def test_lora_adapter_is_asked_for_by_name_id_and_folder(told: dict[str, Any]) -> None:
    assert re.fullmatch(r"the stand-in has no adapters: 3 3 .*/loras/3", told["answers"]["adapter"]["error"])


def test_context_length_is_the_checkpoints_unless_the_file_says_less(told: dict[str, Any], tmp_path: Path) -> None:
    assert told["limits"] == [1024, 1024]
    assert tell(tmp_path, {"max_seq_len": 512})["limits"] == [1024, 512]


def test_argument_that_the_engine_does_not_know_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="max_batch_sizes\n  Extra inputs are not permitted"):
        tell(tmp_path, {"max_batch_sizes": 8})
