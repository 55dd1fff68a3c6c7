"""Tokens per second of the engine alone: `python -m engines.reference.bench [--model-dir D] [--batch N ...]`.

In: a checkpoint, a random one of the reference shape if none. Out: a line for each batch size. Knows no wire.
Start it, as every server of the engine, with OPENBLAS_NUM_THREADS=1 where others use the cores: OpenBLAS's threads spin
while they wait. On two busy cores batch 64 decoded 912 tok/s with two threads, 8,420 with one.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from engines.reference.checkpoint import Checkpoint, LlamaConfig, expected_shapes, load_checkpoint
from engines.reference.engine import Engine
from engines.reference.sampling import SamplingParams

REFERENCE_SHAPE = LlamaConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=640,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=64,
    context_length=1024,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    has_tied_embeddings=True,
)


def random_checkpoint(config: LlamaConfig) -> Checkpoint:
    rng = np.random.default_rng(0)
    shapes = expected_shapes(config)
    return Checkpoint(config, {name: 0.08 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()})


def tokens_per_second(checkpoint: Checkpoint, batch: int, params: SamplingParams) -> tuple[float, float]:
    """Of the decode steps alone, and of everything: `batch` prompts of 40 tokens to their last token."""
    engine = Engine(checkpoint, max_batch=batch)
    rng = np.random.default_rng(1)
    for index in range(batch):
        engine.add(str(index), rng.integers(0, checkpoint.config.vocab_size, 40).tolist(), params)
    began = time.perf_counter()
    while not engine.stats.generated_tokens or engine.stats.prompt_tokens < 40 * batch:
        engine.step()
    prefilled, before = time.perf_counter(), engine.stats.generated_tokens
    while engine.stats.running:
        engine.step()
    ended, generated = time.perf_counter(), engine.stats.generated_tokens
    return (generated - before) / (ended - prefilled), generated / (ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the reference engine, 40 tokens in, 64 out.")
    parser.add_argument("--model-dir", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 128])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many runs counts")
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model_dir) if options.model_dir else random_checkpoint(REFERENCE_SHAPE)
    params = SamplingParams(max_tokens=64, temperature=options.temperature, seed=1, ignore_eos=True)
    for batch in options.batch:
        runs = [tokens_per_second(checkpoint, batch, params) for _ in range(options.repeat)]
        decode, total = (max(values) for values in zip(*runs, strict=True))
        sys.stdout.write(f"batch {batch:4}: decode {decode:8,.0f} tok/s, with prefill {total:8,.0f} tok/s\n")


if __name__ == "__main__":
    main()
