"""vLLM's AsyncLLM behind the adapter, with the reference engine's weights: token for token what that engine answers."""

import json
from typing import Any

import pytest

from engines.reference.engine import Engine
from tests.engines.adapters.cases import SAME, ask_all, check_refused_guide, check_same, check_seeds, complete
from tests.engines.wires.servers import ROOT, STARTUP_S, WEIGHTS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("vllm adapter")]
ARGUMENTS = {"dtype": "float32", "enforce-eager": True, "max_model_len": 1024, "max_num_seqs": 32}
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the adapter answers in vLLM's own environment."""
    file = tmp_path_factory.mktemp("vllm") / "engine.json"
    file.write_text(json.dumps(ARGUMENTS))
    parameters = {"model_dir": str(WEIGHTS), "engine_args": str(file), "guided_decoding_backend": "llguidance"}
    return ask_all(str(ROOT / ".stacks/vllm/bin/python"), "vllm", parameters, **OFFLINE)


@pytest.mark.parametrize("case", SAME)
def test_answer_is_the_reference_engines_token_for_token(told: dict[str, Any], engine: Engine, case: str) -> None:
    check_same(told["answers"][case], complete(engine, case))


def test_seed_decides_a_sampled_answer_the_largest_included(told: dict[str, Any]) -> None:
    check_seeds(told)


def test_guide_that_is_none_fails_its_request_alone_in_vllms_words(told: dict[str, Any]) -> None:
    check_refused_guide(told)


def test_limits_are_the_models_and_the_engines(told: dict[str, Any]) -> None:
    assert told["limits"] == [1024, ARGUMENTS["max_model_len"]]
