"""vLLM's AsyncLLM behind the adapter, with the reference engine's weights: token for token what that engine answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine
from tests.engines.adapters.cases import SAME, ask_all, check_refused_guide, check_same, check_seeds, complete
from tests.engines.adapters.loras import write_lora
from tests.engines.wires.servers import ROOT, STARTUP_S, WEIGHTS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("vllm adapter")]
ARGUMENTS = {"dtype": "float32", "enforce-eager": True, "max_model_len": 1024, "max_num_seqs": 32}
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    write_lora(folder / "loras/3", folder / "merged")
    (folder / "engine.json").write_text(json.dumps(ARGUMENTS))
    return folder


@pytest.fixture(scope="module")
def answered(folder: Path) -> dict[str, Any]:
    """The adapter's answers in vLLM's own environment."""
    parameters = {
        "model_dir": str(WEIGHTS),
        "engine_args": str(folder / "engine.json"),
        "guided_decoding_backend": "llguidance",
        "lora_prefetch_dir": str(folder / "loras"),
    }
    return ask_all(str(ROOT / ".stacks/vllm/bin/python"), "vllm", parameters, **OFFLINE)


@pytest.mark.parametrize("case", SAME)
def test_answer_is_the_reference_engines_token_for_token(answered: dict[str, Any], case: str) -> None:
    check_same(answered["answers"][case], complete(case))


def test_lora_adapter_answers_as_the_weights_that_it_is_merged_into(answered: dict[str, Any], folder: Path) -> None:
    merged = Engine(load_checkpoint(folder / "merged"), max_batch=1)
    check_same(answered["answers"]["adapter"], complete("adapter", merged))
    assert answered["answers"]["adapter"]["ids"] != [output.token_id for output in complete("adapter")]


def test_seed_decides_a_sampled_answer_the_largest_included(answered: dict[str, Any]) -> None:
    check_seeds(answered)


def test_guide_that_is_none_fails_its_request_alone_in_vllms_words(answered: dict[str, Any]) -> None:
    check_refused_guide(answered)


def test_limits_are_the_models_and_the_engines(answered: dict[str, Any]) -> None:
    assert answered["limits"] == [1024, ARGUMENTS["max_model_len"]]
