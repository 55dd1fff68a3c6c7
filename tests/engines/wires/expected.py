"""The engine's own answers, to compare the wires with."""

from functools import cache
from typing import Any

from tokenizers import Tokenizer

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.guide import Grammars
from engines.reference.sampling import SamplingParams
from engines.reference.scores import Score
from tests.engines.wires.servers import WEIGHTS

TOKENIZER: Tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
# A prompt whose answer is short and ends with the end token.
QUESTION: list[int] = TOKENIZER.encode(
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
).ids


@cache
def make_engine() -> Engine:
    return Engine(load_checkpoint(WEIGHTS), max_batch=1, grammars=Grammars(WEIGHTS, 1024))


def run_alone(engine: Engine, prompt: list[int], params: SamplingParams) -> list[TokenOutput]:
    engine.add("it", prompt, params)
    outputs = []
    while engine.stats.running or engine.stats.waiting:
        outputs += engine.step()
    return outputs


def run(prompt: list[int], max_tokens: int, **params: Any) -> list[TokenOutput]:  # SamplingParams' fields
    """The engine on its own, greedy unless `params` differ."""
    return run_alone(make_engine(), prompt, SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | params)))


def complete(prompt: list[int], max_tokens: int, **params: Any) -> list[int]:  # SamplingParams' fields
    """The engine's answer, end token included."""
    return [output.token_id for output in run(prompt, max_tokens, **params)]


def scored(prompt: list[int], max_tokens: int, **params: Any) -> list[Score]:  # SamplingParams' fields
    """The scores of its answer."""
    return [output.score for output in run(prompt, max_tokens, **params) if output.score is not None]


def scored_prompt(prompt: list[int], count: int) -> list[Score]:
    """The scores of the prompt's tokens but the first, which has none, with `count` of the likeliest in their place."""
    first, *others = run(prompt, 1, prompt_logprobs=count)[0].prompt_scores or ()
    assert first is None
    return [score for score in others if score is not None]
