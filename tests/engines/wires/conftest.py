"""The engine's own answers, to compare the wires with."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.guide import Grammars
from engines.reference.sampling import SamplingParams
from engines.reference.scores import Score
from tests.engines.wires.servers import WEIGHTS

Complete = Callable[..., list[int]]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))


@pytest.fixture(scope="session")
def question(tokenizer: Tokenizer) -> list[int]:
    """A prompt whose answer is short and ends with the end token."""
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    return list(tokenizer.encode(text).ids)


@pytest.fixture(scope="session")
def outputs() -> Callable[..., list[TokenOutput]]:
    """The engine on its own, greedy unless `params` differ."""
    engine = Engine(load_checkpoint(WEIGHTS), max_batch=1, grammars=Grammars(WEIGHTS, 1024))

    def run(prompt: list[int], max_tokens: int, **params: Any) -> list[TokenOutput]:  # SamplingParams' fields
        engine.add("it", prompt, SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | params)))
        outputs = []
        while engine.stats.running or engine.stats.waiting:
            outputs += engine.step()
        return outputs

    return run


@pytest.fixture(scope="session")
def complete(outputs: Callable[..., list[TokenOutput]]) -> Complete:
    """The engine's answer, end token included."""

    def run(prompt: list[int], max_tokens: int, **params: Any) -> list[int]:  # SamplingParams' fields
        return [output.token_id for output in outputs(prompt, max_tokens, **params)]

    return run


@pytest.fixture(scope="session")
def scored(outputs: Callable[..., list[TokenOutput]]) -> Callable[..., list[Score]]:
    """The scores of its answer."""

    def run(prompt: list[int], max_tokens: int, **params: Any) -> list[Score]:  # SamplingParams' fields
        return [output.score for output in outputs(prompt, max_tokens, **params) if output.score is not None]

    return run


@pytest.fixture(scope="session")
def scored_prompt(outputs: Callable[..., list[TokenOutput]]) -> Callable[..., list[Score]]:
    """The scores of the prompt's tokens but the first, which has none, with `count` of the likeliest in their place."""

    def run(prompt: list[int], count: int) -> list[Score]:
        first, *others = outputs(prompt, 1, prompt_logprobs=count)[0].prompt_scores or ()
        assert first is None
        return [score for score in others if score is not None]

    return run
