"""The reference engine against transformers in float32 on the same weights: 100 prompts x 64 tokens.

Logits are compared along transformers' own answers, so one near-tie does not derail what follows it.
"""

import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engines.reference.cache import KVCache
from engines.reference.checkpoint import Checkpoint, load_checkpoint
from engines.reference.model import Model
from engines.reference.plan import Chunk
from tests.reference_world import conversations

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
PROMPTS, TOKENS, MARGIN = 100, 64, 1e-3
ALL, EVERY_TENTH = slice(None), slice(None, None, 10)  # prompts, of every length
WEIGHTS = Path(__file__).parents[2] / "engines/reference/weights"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Golden:
    """What transformers answered: tokens [PROMPTS, TOKENS] and the logits behind them [PROMPTS, TOKENS, vocab_size]."""

    checkpoint: Checkpoint
    prompts: Sequence[list[int]]
    tokens: NDArray[np.int64]
    logits: Floats

    @property
    def is_clear(self) -> NDArray[np.bool_]:
        """Where the two best logits are further apart than float32 implementations may differ: [PROMPTS, TOKENS]."""
        best = np.partition(self.logits, -2, axis=2)[..., -2:]
        clear: NDArray[np.bool_] = best[..., 1] - best[..., 0] > MARGIN
        return clear


def random_prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [
        [rng.randrange(1024) for _ in range(length)] for length in (1, 17, 40, 90, 300) for _ in range(PROMPTS // 5)
    ]


def spoken_prompts() -> list[list[int]]:
    """Questions the trained model knows how to answer."""
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    asked = [
        next(str(message["content"]) for message in conversation.messages if message["role"] == "user")
        for conversation in conversations(seed=11, count=PROMPTS)
    ]
    rendered = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in asked]
    return [encoding.ids for encoding in tokenizer.encode_batch(rendered)]


# The two halves of this module's long time share nothing, so two workers may share it.
@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("random", "trained")]
)
def golden(
    request: pytest.FixtureRequest,
    torch_python: Path,
    make_checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Golden:
    directory = make_checkpoint() if request.param == "random" else WEIGHTS
    prompts = random_prompts() if request.param == "random" else spoken_prompts()
    padded = np.full((len(prompts), max(map(len, prompts))), -1)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    asked, answered = (tmp_path_factory.mktemp("oracle") / name for name in ("asked.npz", "golden.npz"))
    np.savez(asked, prompts=padded, tokens=TOKENS)
    oracle = Path(__file__).with_name("transformers_oracle.py")
    ran = subprocess.run(
        [torch_python, oracle, directory, asked, answered], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    with np.load(answered) as arrays:
        return Golden(load_checkpoint(directory), prompts, arrays["tokens"], arrays["logits"])


def logits_along(golden: Golden, rows: range) -> Floats:
    """Ours after the prompts and after each of transformers' tokens, the rows as one batch."""
    model, cache = Model(golden.checkpoint), KVCache(golden.checkpoint.config, len(rows))
    prompts = [golden.prompts[row] for row in rows]
    steps = [model.forward([Chunk(slot, 0, prompt) for slot, prompt in enumerate(prompts)], cache)]
    for step in range(TOKENS - 1):
        fed = golden.tokens[rows.start : rows.stop, step].tolist()
        chunks = [Chunk(slot, len(prompts[slot]) + step, [token]) for slot, token in enumerate(fed)]
        steps.append(model.forward(chunks, cache))
    return np.stack(steps, axis=1)


def batches(size: int) -> list[range]:
    return [range(first, min(first + size, PROMPTS)) for first in range(0, PROMPTS, size)]


@pytest.mark.parametrize("size", [1, 64])
def test_logits_are_within_a_thousandth_alone_and_in_a_batch_of_64(golden: Golden, size: int) -> None:
    ours = np.concatenate([logits_along(golden, rows) for rows in batches(size)])
    assert np.abs(ours - golden.logits).max() < MARGIN
    is_equal = ours.argmax(axis=2) == golden.tokens
    assert (is_equal | ~golden.is_clear).all()
