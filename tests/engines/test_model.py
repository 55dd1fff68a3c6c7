"""The fused, batched, cached forward pass against Llama's formulas written out for one sequence in float64."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.reference.cache import KVCache
from engines.reference.checkpoint import Checkpoint, LlamaConfig, load_checkpoint
from engines.reference.model import Model
from engines.reference.plan import Chunk, neighbours

Doubles = NDArray[np.float64]
SHAPES: Mapping[str, dict[str, object]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 4},
    "one-kv-head": {"num_key_value_heads": 1},
    "untied": {"tie_word_embeddings": False},
    "wide-heads": {"head_dim": 32, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
}
TINY = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}


@pytest.fixture(params=SHAPES)
def shaped(request: pytest.FixtureRequest, make_checkpoint: Callable[..., Path]) -> Checkpoint:
    return load_checkpoint(make_checkpoint(**TINY | SHAPES[request.param]))


def written_out(checkpoint: Checkpoint, token_ids: list[int]) -> Doubles:
    """Logits at every position: [tokens, vocab_size]."""
    config = checkpoint.config
    weight = {name: values.astype(np.float64) for name, values in checkpoint.tensors.items()}
    hidden = weight["model.embed_tokens.weight"][token_ids]
    for index in range(config.layers):
        layer = {
            name.removeprefix(f"model.layers.{index}.").removesuffix(".weight"): values
            for name, values in weight.items()
        }
        hidden = hidden + attention(norm(hidden, layer["input_layernorm"], config), layer, config)
        normed = norm(hidden, layer["post_attention_layernorm"], config)
        gate = normed @ layer["mlp.gate_proj"].T
        inner = gate / (1 + np.exp(-gate)) * (normed @ layer["mlp.up_proj"].T)
        hidden = hidden + inner @ layer["mlp.down_proj"].T
    head = weight["model.embed_tokens.weight" if config.has_tied_embeddings else "lm_head.weight"]
    logits: Doubles = norm(hidden, weight["model.norm.weight"], config) @ head.T
    return logits


def norm(hidden: Doubles, gain: Doubles, config: LlamaConfig) -> Doubles:
    scaled: Doubles = gain * hidden / np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + config.rms_norm_eps)
    return scaled


def attention(hidden: Doubles, layer: Mapping[str, Doubles], config: LlamaConfig) -> Doubles:
    tokens = len(hidden)

    def heads(name: str) -> Doubles:
        return (hidden @ layer[f"self_attn.{name}"].T).reshape(tokens, -1, config.head_dim).swapaxes(0, 1)

    queries, keys, values = rotate(heads("q_proj"), config), rotate(heads("k_proj"), config), heads("v_proj")
    mixed = []
    for head in range(config.heads):
        shared = head // config.group
        scores = queries[head] @ keys[shared].T / np.sqrt(config.head_dim)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(chances / chances.sum(axis=1, keepdims=True) @ values[shared])
    joined: Doubles = np.concatenate(mixed, axis=1) @ layer["self_attn.o_proj"].T
    return joined


def rotate(heads: Doubles, config: LlamaConfig) -> Doubles:
    half = config.head_dim // 2
    angles = np.outer(np.arange(heads.shape[1]), config.rope_theta ** (-np.arange(half) / half))
    first, second = heads[..., :half], heads[..., half:]
    turned = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
    return np.concatenate(turned, axis=-1)


def prompt_of(length: int, seed: int, vocab_size: int = 100) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab_size, length).tolist()
    return tokens


def close(ours: Any, theirs: Any) -> None:  # arrays of any precision
    np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=0)


def test_token_by_token_matches_the_formulas(shaped: Checkpoint) -> None:
    prompt = prompt_of(20, seed=2)
    model, cache = Model(shaped), KVCache(shaped.config, 1)
    logits = [model.forward([Chunk(0, at, [token])], cache)[0] for at, token in enumerate(prompt)]
    close(logits, written_out(shaped, prompt))


def test_decoding_and_pieces_of_prompts_share_a_step_in_any_order(shaped: Checkpoint) -> None:
    prompts = [prompt_of(length, seed=length) for length in (9, 25, 12, 17, 31)]
    model, cache = Model(shaped), KVCache(shaped.config, 5)
    done = [8, 10, 11, 0, 30]
    model.forward([Chunk(slot, 0, prompts[slot][: done[slot]]) for slot in (0, 1, 2, 4)], cache)
    order = (4, 1, 0, 2, 3)
    logits = model.forward([Chunk(slot, done[slot], prompts[slot][done[slot] :]) for slot in order], cache)
    for row, slot in zip(logits, order, strict=True):
        close(row, written_out(shaped, prompts[slot])[-1])


def test_a_sequence_goes_on_in_the_slot_it_was_moved_to(shaped: Checkpoint) -> None:
    prompt, other = prompt_of(20, seed=3), prompt_of(33, seed=4)
    model, cache = Model(shaped), KVCache(shaped.config, 3)
    model.forward([Chunk(0, 0, other), Chunk(2, 0, prompt[:-1])], cache)
    cache.move(2, 0, len(prompt) - 1)
    close(model.forward([Chunk(0, 19, prompt[-1:])], cache)[0], written_out(shaped, prompt)[-1])


def test_large_gates_do_not_overflow_to_nan(shaped: Checkpoint) -> None:
    tensors = {name: values * (1000 if "gate_proj" in name else 1) for name, values in shaped.tensors.items()}
    loud = Checkpoint(shaped.config, tensors)
    logits = Model(loud).forward([Chunk(0, 0, prompt_of(9, seed=5))], KVCache(loud.config, 1))
    assert np.isfinite(logits).all()


def test_one_token_chunks_in_consecutive_slots_are_one_span() -> None:
    chunks = [Chunk(0, 4, [1]), Chunk(1, 9, [1]), Chunk(3, 0, [1]), Chunk(4, 0, [1, 2]), Chunk(5, 0, [1, 2])]
    assert list(neighbours(chunks)) == [(0, 1), (2, 2), (3, 3), (4, 4)]
