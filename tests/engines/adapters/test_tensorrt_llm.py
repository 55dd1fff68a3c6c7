"""The TensorRT-LLM adapter on a stand-in for tensorrt_llm: its documented signatures, before the reference engine."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.adapters.outputs import WITHHELD
from engines.recipes.load import find_recipe, load_recipe
from engines.recipes.recipe import TorchRecipe
from engines.trtllm.llm_args import dump_llm_args, make_llm_args
from tests.engines.adapters.cases import OTHERS, SAME, ask, check_refused_guide, check_same, check_seeds, complete
from tests.engines.wires.servers import ROOT, WEIGHTS

STANDINS = ROOT / "tests/engines/adapters/standins"
NOTHING: Mapping[str, Any] = {}
EXECUTORS: Mapping[str, dict[str, str]] = {
    "keeps the end token and returns three at once": {"STANDIN_TOKENS": "3"},
    "returns the end token": {"STANDIN_RETURNS_END": "1"},
}


def ask_adapter(
    folder: Path, arguments: Mapping[str, Any], named: Mapping[str, Any] = NOTHING, **variables: str
) -> dict[str, Any]:
    return ask_of_file(folder, json.dumps(arguments), named, **variables)


def ask_of_file(folder: Path, text: str, named: Mapping[str, Any] = NOTHING, **variables: str) -> dict[str, Any]:
    (folder / "engine.yaml").write_text(text)
    parameters = {
        "model_dir": str(WEIGHTS),
        "engine_args": str(folder / "engine.yaml"),
        "guided_decoding_backend": "llguidance",
        "lora_prefetch_dir": str(folder / "loras"),
    }
    (folder / "loras/3").mkdir(parents=True)
    (folder / "loras/3/adapter_config.json").touch()
    variables |= {"PYTHONPATH": f"{ROOT}:{STANDINS}"}
    return ask([sys.executable, "tensorrt_llm"], parameters, named, **variables)


@pytest.fixture(scope="module", params=EXECUTORS)
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ask_adapter(
        tmp_path_factory.mktemp("trtllm"), {"max_batch_size": 32}, {**SAME, **OTHERS}, **EXECUTORS[request.param]
    )


@pytest.mark.parametrize("case", SAME)
def test_answer_is_the_reference_engines_whatever_becomes_of_the_end_token(answered: dict[str, Any], case: str) -> None:
    expected = complete(case)
    answer = answered["answers"][case]
    if expected[-1].finish_reason == "stop" and answer["ids"][-1] == WITHHELD:
        answer = {**answer, "ids": [*answer["ids"][:-1], expected[-1].token_id]}
    check_same(answer, expected)


def test_seed_decides_a_sampled_answer_the_largest_included(answered: dict[str, Any]) -> None:
    check_seeds(answered)


def test_guide_that_is_none_fails_its_request_alone(answered: dict[str, Any]) -> None:
    check_refused_guide(answered)


def test_lora_adapter_is_asked_for_by_name_id_and_folder(answered: dict[str, Any]) -> None:
    assert re.fullmatch(r"the stand-in has no adapters: 3 3 .*/loras/3", answered["answers"]["adapter"]["error"])


def test_context_length_is_the_checkpoints_unless_the_file_sets_less(answered: dict[str, Any], tmp_path: Path) -> None:
    assert answered["limits"] == [1024, 1024]
    assert ask_adapter(tmp_path, {"max_seq_len": 512})["limits"] == [1024, 512]


def test_argument_that_the_engine_does_not_know_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="max_batch_sizes\n  Extra inputs are not permitted"):
        ask_adapter(tmp_path, {"max_batch_sizes": 8})


# ---- speculation, in the schema of release 1.2 and in the later one --------------------------------------------------

EAGLE3 = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "/models/eagle3"}


@pytest.mark.parametrize("schema", ["classvar", "literal"])
def test_file_that_a_recipe_with_drafts_renders_into_is_taken_in_both_schemas(tmp_path: Path, schema: str) -> None:
    recipe = load_recipe(find_recipe("llama-3.1-8b-torch-eagle3-tp1"))
    assert isinstance(recipe, TorchRecipe)
    text, named = dump_llm_args(make_llm_args(recipe)), {"greedy": SAME["greedy"]}
    answered = ask_of_file(tmp_path, text, named, STANDIN_SCHEMA=schema)
    assert len(answered["answers"]["greedy"]["ids"]) == SAME["greedy"]["max_tokens"]
    assert set(answered["unfollowed"]) >= {"embedding_bias", "min_tokens", "return_log_probs"}
    assert answered["unfollowed"].count("repetition_penalty") == (schema == "classvar")


def test_speculation_of_null_is_none(tmp_path: Path) -> None:
    assert ask_of_file(tmp_path, "speculative_config: null\n")["limits"] == [1024, 1024]


@pytest.mark.parametrize(
    ("speculation", "problem"),
    [
        ({**EAGLE3, "decoding_type": "Eagle9"}, "Invalid decoding type: Eagle9"),
        ({**EAGLE3, "max_draft_length": 3}, "max_draft_length\n  Extra inputs are not permitted"),
    ],
)
def test_speculation_that_the_release_refuses_is_reported_with_the_file(
    tmp_path: Path, speculation: dict[str, object], problem: str
) -> None:
    with pytest.raises(AssertionError) as raised:
        ask_adapter(tmp_path, {"speculative_config": speculation})
    assert f"ArgumentError: {tmp_path}/engine.yaml: " in str(raised.value)
    assert problem in str(raised.value)
