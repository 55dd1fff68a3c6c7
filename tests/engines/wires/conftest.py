"""What the engine itself answers, to compare the wires with."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine
from engines.reference.sampling import SamplingParams
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
def complete() -> Complete:
    """What the engine answers on its own, end token included."""
    engine = Engine(load_checkpoint(WEIGHTS), max_batch=1)

    def run(prompt: list[int], max_tokens: int, **params: Any) -> list[int]:  # SamplingParams' fields
        engine.add("it", prompt, SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | params)))
        tokens = []
        while engine.stats.running or engine.stats.waiting:
            tokens += [output.token_id for output in engine.step()]
        return tokens

    return run
