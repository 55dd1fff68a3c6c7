"""The requests to every adapter, and the reference engine's answers: theirs have to be the same, token for token."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from engines.reference.engine import Engine, TokenOutput
from tests.engines.adapters.run import request
from tests.engines.wires.expected import make_engine, run_alone
from tests.engines.wires.servers import ROOT, STARTUP_S

EOS = 2
PROMPT = list(range(10, 20))
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
    "adapter": {"max_tokens": 24, "ignore_eos": True, "lora_task_id": 3},
    "no guide": {"max_tokens": 4, "guide": ["json_schema", "{"]},
}


def ask_all(python: str, engine: str, parameters: Mapping[str, str], **variables: str) -> dict[str, Any]:
    return ask([python, engine], parameters, {**SAME, **OTHERS}, **variables)


def ask(
    command: Sequence[str], parameters: Mapping[str, str], named: Mapping[str, Any], **variables: str
) -> dict[str, Any]:
    """The answers of an adapter in an interpreter's environment, as run.py writes it; `command`: the two."""
    python, engine = command
    cases = {name: {"prompt": PROMPT, "params": params} for name, params in named.items()}
    ended = subprocess.run(
        [python, str(ROOT / "tests/engines/adapters/run.py"), engine],
        input=json.dumps({"parameters": parameters, "cases": cases}),
        env={**os.environ, **variables},  # noqa: TID251 - starts processes
        capture_output=True,
        text=True,
        timeout=STARTUP_S,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answered: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answered


def complete(case: str, engine: Engine | None = None) -> list[TokenOutput]:
    """The reference engine's answer, with other weights if another `engine` holds them."""
    return run_alone(engine or make_engine(), PROMPT, request(PROMPT, {**SAME, **OTHERS}[case]).params)


def check_same(answer: Mapping[str, Any], expected: list[TokenOutput]) -> None:
    assert answer["error"] is None, answer["error"]
    assert answer["ids"] == [output.token_id for output in expected]
    assert answer["positions"] == [output.position for output in expected]
    assert answer["finish_reason"] == expected[-1].finish_reason
    logprobs = [output.logprob for output in expected]
    assert answer["logprobs"] == (logprobs if None in logprobs else pytest.approx(logprobs, abs=1e-3))


def check_seeds(answered: Mapping[str, Any]) -> None:
    ids = {name: answer["ids"] for name, answer in answered["answers"].items()}
    assert ids["seed"] == ids["seed again"] != ids["another seed"]
    assert ids["largest seed"] == ids["largest seed again"] != ids["seed"]


def check_refused_guide(answered: Mapping[str, Any]) -> None:
    answer = answered["answers"]["no guide"]
    assert (answer["ids"], answer["finish_reason"]) == ([], None)
    assert "EOF while parsing" in answer["error"]
