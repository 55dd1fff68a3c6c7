"""vLLM's AsyncLLM behind the adapter, with the reference engine's weights: token for token what that engine answers."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.guide import Grammars
from tests.engines.adapters.run import request
from tests.engines.wires.servers import ROOT, STARTUP_S, WEIGHTS

pytestmark = [pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("vllm adapter")]
Complete = Callable[..., list[TokenOutput]]
EOS = 2
PROMPT = list(range(10, 20))
ARGUMENTS = {"dtype": "float32", "enforce-eager": True, "max_model_len": 1024, "max_num_seqs": 32}
SCHEMA = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
SAMPLED = {"max_tokens": 24, "temperature": 1.5, "ignore_eos": True}
SAME: Mapping[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 32, "ignore_eos": True},
    "until the end token": {"max_tokens": 64, "end_ids": [EOS]},
    "min_tokens hold the end token back": {"max_tokens": 40, "min_tokens": 40, "end_ids": [EOS]},
    "no end token": {"max_tokens": 24},
    "stop id": {"max_tokens": 24, "stop_ids": [924]},
    "repetition penalty": {"max_tokens": 24, "repetition_penalty": 1.8, "ignore_eos": True},
    "frequency penalty": {"max_tokens": 24, "frequency_penalty": 1.5, "ignore_eos": True},
    "presence penalty": {"max_tokens": 24, "presence_penalty": 1.5, "ignore_eos": True},
    "bias": {"max_tokens": 5, "logit_bias": [[77, 100.0]]},
    "log probabilities": {"max_tokens": 8, "logprobs": 0},
    "json": {"max_tokens": 40, "guide": ["json"], "end_ids": [EOS]},
    "json_schema": {"max_tokens": 60, "guide": ["json_schema", SCHEMA], "end_ids": [EOS]},
    "regex": {"max_tokens": 30, "guide": ["regex", "[0-9]{4}-[0-9]{2}"], "end_ids": [EOS]},
    "ebnf_grammar": {"max_tokens": 30, "guide": ["ebnf_grammar", 'root ::= "yes" | "no"'], "end_ids": [EOS]},
}
OTHERS: Mapping[str, dict[str, Any]] = {
    "seed": SAMPLED | {"seed": 7},
    "seed again": SAMPLED | {"seed": 7},
    "another seed": SAMPLED | {"seed": 8},
    "largest seed": SAMPLED | {"seed": 2**64 - 1},
    "largest seed again": SAMPLED | {"seed": 2**64 - 1},
    "no guide": {"max_tokens": 4, "guide": ["json_schema", "{"]},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the adapter answers in vLLM's own environment."""
    file = tmp_path_factory.mktemp("vllm") / "engine.json"
    file.write_text(json.dumps(ARGUMENTS))
    parameters = {"model_dir": str(WEIGHTS), "engine_args": str(file), "guided_decoding_backend": "llguidance"}
    cases = {name: {"prompt": PROMPT, "params": params} for name, params in {**SAME, **OTHERS}.items()}
    return run(".stacks/vllm/bin/python", {"parameters": parameters, "cases": cases})


def run(python: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    ended = subprocess.run(
        [python, str(ROOT / "tests/engines/adapters/run.py"), "vllm"],
        input=json.dumps(asked),
        env={**os.environ, **variables},  # noqa: TID251 - starts processes
        capture_output=True,
        text=True,
        timeout=STARTUP_S,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def complete() -> Complete:
    """The reference engine's answer."""
    engine = Engine(load_checkpoint(WEIGHTS), max_batch=1, grammars=Grammars(WEIGHTS, 1024))
    return partial(_complete, engine)


def _complete(engine: Engine, **params: Any) -> list[TokenOutput]:
    engine.add("it", PROMPT, request(PROMPT, params).params)
    outputs = []
    while engine.stats.running or engine.stats.waiting:
        outputs += engine.step()
    return outputs


@pytest.mark.parametrize("case", SAME)
def test_answer_is_the_reference_engines_token_for_token(told: dict[str, Any], complete: Complete, case: str) -> None:
    answer, expected = told["answers"][case], complete(**SAME[case])
    assert answer["error"] is None
    assert answer["ids"] == [output.token_id for output in expected]
    assert answer["positions"] == [output.position for output in expected]
    assert answer["finish_reason"] == expected[-1].finish_reason
    logprobs = [output.logprob for output in expected]
    assert answer["logprobs"] == (logprobs if None in logprobs else pytest.approx(logprobs, abs=1e-3))


def test_seed_decides_a_sampled_answer_the_largest_included(told: dict[str, Any]) -> None:
    ids = {name: answer["ids"] for name, answer in told["answers"].items()}
    assert ids["seed"] == ids["seed again"] != ids["another seed"]
    assert ids["largest seed"] == ids["largest seed again"] != ids["seed"]


def test_guide_that_is_none_fails_its_request_alone_in_vllms_words(told: dict[str, Any]) -> None:
    answer = told["answers"]["no guide"]
    assert (answer["ids"], answer["finish_reason"]) == ([], None)
    assert "EOF while parsing" in answer["error"]


def test_limits_are_the_models_and_the_engines(told: dict[str, Any]) -> None:
    assert told["limits"] == [1024, ARGUMENTS["max_model_len"]]
