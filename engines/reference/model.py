"""The Llama decoder in float32: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

In: chunks of sequences whose earlier positions are in the cache. Out: logits after each chunk's last token, or after
all. Knows nothing of requests, sampling or scheduling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.reference.cache import KVCache
from engines.reference.checkpoint import Checkpoint, Floats, LlamaConfig
from engines.reference.plan import FEW_ROWS, Chunk, Plan, Span


@dataclass(frozen=True)
class Layer:
    """One layer's matrices, [in, out], already multiplied by each norm's gain and the attention's scale."""

    qkv: Floats
    output: Floats
    gate_up: Floats  # negative, see swiglu
    down: Floats


class Model:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        tensors = checkpoint.tensors
        self._embedding = tensors["model.embed_tokens.weight"]
        head = self._embedding if self.config.has_tied_embeddings else tensors["lm_head.weight"]
        self._head = np.ascontiguousarray((head * tensors["model.norm.weight"]).T)
        self._layers = [fuse_layer(checkpoint, index) for index in range(self.config.layers)]
        self._rotations = rotations(self.config)

    def forward(self, chunks: Sequence[Chunk], cache: KVCache) -> Floats:
        """Writes the chunks' keys and values to the cache. Returns [chunks + inner tokens of scored ones, vocab_size].

        Attention of one-token chunks is one batch where their slots are consecutive, so pass them in slot order.
        """
        plan = Plan(chunks, self.config.group)
        hidden = self._embedding[plan.token_ids]
        rotation = self._rotations[plan.positions][:, None]
        with np.errstate(over="ignore"):  # exp(large) is inf, and x / inf the 0 that swiglu wants
            for index, layer in enumerate(self._layers):
                attended = self._attend(
                    linear(self._normed(hidden), layer.qkv), rotation, plan, (cache.keys[index], cache.values[index])
                )
                if index == self.config.layers - 1:
                    hidden, attended = hidden[plan.ends], attended[plan.ends]
                hidden += linear(attended, layer.output)
                hidden += linear(swiglu(linear(self._normed(hidden), layer.gate_up)), layer.down)
        return linear(self._normed(hidden), self._head)[: len(chunks) + plan.inner]

    def embed(self, token_ids: Sequence[int]) -> Floats:
        """Returns the mean of the tokens' vectors, of length 1: [hidden_size]."""
        mean = self._embedding[list(token_ids)].mean(axis=0)
        embedding: Floats = mean / max(float(np.linalg.norm(mean)), 1e-12)
        return embedding

    def _normed(self, hidden: Floats) -> Floats:
        squares = np.einsum("ij,ij->i", hidden, hidden)
        squares /= self.config.hidden_size
        squares += self.config.rms_norm_eps
        normed: Floats = hidden / np.sqrt(squares)[:, None]
        return normed

    def _attend(
        self, qkv: Floats, rotation: NDArray[np.complex64], plan: Plan, stores: tuple[Floats, Floats]
    ) -> Floats:
        config = self.config
        by_head = qkv[: plan.rows].reshape(plan.rows, -1, config.head_dim)
        rotated = by_head[:, : -config.kv_heads].view(np.complex64)
        rotated *= rotation
        keys, values = stores
        keys[plan.slots, :, plan.positions] = by_head[:, config.heads : -config.kv_heads]
        values[plan.slots, :, plan.positions] = by_head[:, -config.kv_heads :]
        queries = by_head[:, : config.heads]
        attended = np.zeros((len(qkv), config.heads, config.head_dim), np.float32)
        for span in plan.spans:
            shape = (-1, span.tokens, config.kv_heads, config.group, config.head_dim)
            attended[span.rows].reshape(shape)[...] = attend(queries[span.rows].reshape(shape), keys, values, span)
        return attended.reshape(len(qkv), -1)


def linear(rows: Floats, matrix: Floats) -> Floats:
    """Multiplies a few rows one by one: OpenBLAS takes 78 us for two vectors by a layer's matrices, 217 us for two
    rows.
    """
    if len(rows) > FEW_ROWS:
        product: Floats = rows @ matrix
        return product
    return (rows[:, None] @ matrix)[:, 0]


def attend(queries: Floats, keys: Floats, values: Floats, span: Span) -> Floats:
    """Attends: queries and result are [slots, tokens, kv_heads, group, head_dim]; keys and values are one layer's."""
    slots, tokens, kv_heads, group, head_dim = queries.shape
    by_kv_head = queries.swapaxes(1, 2).reshape(slots, kv_heads, tokens * group, head_dim)
    weights: Floats = by_kv_head @ keys[span.slots, :, : span.length].swapaxes(2, 3)
    if span.bias is not None:
        weights += span.bias
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    mixed: Floats = weights @ values[span.slots, :, : span.length]
    mixed /= weights.sum(axis=-1, keepdims=True)
    return mixed.reshape(slots, kv_heads, tokens, group, head_dim).swapaxes(1, 2)


def swiglu(negated: Floats) -> Floats:
    """silu(gate) * up from [-gate, -up]: the sign is in the weights, which saves a pass over the widest array."""
    gate, up = np.split(negated, 2, axis=1)
    divisor = np.exp(gate)
    divisor += 1
    gate *= up
    gate /= divisor
    return gate


def fuse_layer(checkpoint: Checkpoint, index: int) -> Layer:
    config = checkpoint.config

    def weight(name: str) -> Floats:
        return checkpoint.tensors[f"model.layers.{index}.{name}.weight"]

    queries = interleave(weight("self_attn.q_proj"), config) * np.float32(config.head_dim**-0.5)
    keys = interleave(weight("self_attn.k_proj"), config)
    qkv = np.concatenate([queries, keys, weight("self_attn.v_proj")]) * weight("input_layernorm")
    gate_up = np.concatenate([weight("mlp.gate_proj"), weight("mlp.up_proj")]) * -weight("post_attention_layernorm")
    matrices = (qkv, weight("self_attn.o_proj"), gate_up, weight("mlp.down_proj"))
    return Layer(*(np.ascontiguousarray(matrix.T) for matrix in matrices))


def interleave(projection: Floats, config: LlamaConfig) -> Floats:
    """Reorders each head so that pairs rotated together, i and i + head_dim / 2 in Hugging Face's layout, are adjacent.

    A rotation is then one complex product. Dot products of queries with keys do not depend on the order.
    """
    halves = projection.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(projection.shape)


def rotations(config: LlamaConfig) -> NDArray[np.complex64]:
    """Returns exp(i * angle) for every position and pair: [context_length, head_dim / 2]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim
    # float32 as transformers computes them, so that positions far out turn by the same angle.
    frequencies = (1 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    angles = np.arange(config.context_length, dtype=np.float32)[:, None] * frequencies
    table: NDArray[np.complex64] = (np.cos(angles) + 1j * np.sin(angles)).astype(np.complex64)
    return table
