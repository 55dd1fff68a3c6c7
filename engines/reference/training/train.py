"""Trains the reference model on its closed world and writes engines/reference/weights/.

    python -m engines.reference.training.train --out engines/reference/weights

Needs torch and transformers (any environment that has them); seeded. The weights in the repository came from one
run of the defaults: 4 minutes on one NVIDIA H200 (PyTorch 2.11). A CPU takes hours: `--steps 300` shows that it learns.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from engines.reference.training.tokenizer import (
    CONTEXT_LENGTH,
    END,
    END_OF_TEXT,
    START,
    VOCABULARY,
    Renderer,
    save_tokenizer,
    train_tokenizer,
)
from engines.reference.training.world import conversations

IGNORED = -100  # torch's cross_entropy skips this label
Example = tuple[list[int], list[int]]  # token ids, labels


@dataclass(frozen=True)
class Recipe:
    seed: int = 20261121
    examples: int = 800_000
    steps: int = 8_000
    tokens_per_batch: int = 65_536
    peak_rate: float = 3e-3
    warmup: int = 200


def llama(vocabulary: int, end: int, pad: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=CONTEXT_LENGTH,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
        )
    )


def label(ids: list[int], opening: list[int], end: int) -> list[int]:
    """Only what an assistant says, its end token included, is learnt."""
    labels, position = [IGNORED] * len(ids), 0
    while position < len(ids):
        if ids[position : position + len(opening)] != opening:
            position += 1
            continue
        position += len(opening)
        while position < len(ids):
            labels[position] = ids[position]
            position += 1
            if ids[position - 1] == end:
                break
    return labels


def token_id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no {token}")
    return number


def encode_shard(job: tuple[int, int, str, str]) -> list[Example]:
    seed, count, tokenizer_json, template = job
    tokenizer, render = Tokenizer.from_str(tokenizer_json), Renderer(Path(template))
    opening = tokenizer.encode(f"{START}assistant\n", add_special_tokens=False).ids
    end = token_id(tokenizer, END)
    texts = [render(conversation) for conversation in conversations(seed, count)]
    encoded = (e.ids[:512] for e in tokenizer.encode_batch(texts, add_special_tokens=False))
    return [(ids, label(ids, opening, end)) for ids in encoded]


def encode_world(recipe: Recipe, tokenizer: Tokenizer, template: Path) -> list[Example]:
    shards = 64
    jobs = [
        (recipe.seed + 1 + shard, recipe.examples // shards, tokenizer.to_str(), str(template))
        for shard in range(shards)
    ]
    with multiprocessing.get_context("spawn").Pool() as pool:
        return [example for shard in pool.imap(encode_shard, jobs) for example in shard]


def batches(examples: list[Example], recipe: Recipe, pad: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless shuffled batches of like lengths, about tokens_per_batch each: int64 [rows, width] ids and labels."""
    rng = np.random.default_rng(recipe.seed)
    lengths = np.array([len(ids) for ids, _ in examples])
    starts = np.cumsum(lengths) - lengths
    flat = np.array([
        [token for e in examples for token in e[part]] + [filler] for part, filler in ((0, pad), (1, IGNORED))
    ])
    while True:
        order = np.lexsort((rng.random(len(lengths)), lengths // 8))
        cuts = np.flatnonzero(np.diff(np.cumsum(lengths[order]) // recipe.tokens_per_batch)) + 1
        chunks = np.split(order, cuts)
        for chunk in rng.permutation(len(chunks)):
            rows = chunks[chunk]
            columns = np.arange(lengths[rows].max())
            index = np.where(columns < lengths[rows, None], starts[rows, None] + columns, flat.shape[1] - 1)
            ids, labels = torch.from_numpy(flat[:, index])
            yield ids, labels


def rate(step: int, recipe: Recipe) -> float:
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.002 + 0.998 * 0.5 * (1 + math.cos(math.pi * done))


def loss_of(model: LlamaForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


def fit(model: LlamaForCausalLM, examples: list[Example], recipe: Recipe, pad: int) -> None:
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.peak_rate, betas=(0.9, 0.98), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, recipe))
    started = time.monotonic()
    for step, (ids, labels) in zip(range(recipe.steps), batches(examples, recipe, pad), strict=False):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, ids.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 250 == 0 or step == recipe.steps - 1:
            print(f"step {step} loss {loss.item():.5f} {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--examples", type=int, default=Recipe.examples)
    arguments = parser.parse_args()
    recipe = Recipe(steps=arguments.steps, examples=arguments.examples)
    out: Path = arguments.out
    template = Path(__file__).parents[1] / "weights" / "chat_template.jinja"

    torch.manual_seed(recipe.seed)
    render = Renderer(template)
    tokenizer = train_tokenizer(map(render, conversations(recipe.seed, 60_000)))
    out.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, out)
    started = time.monotonic()
    examples = encode_world(recipe, tokenizer, template)
    print(f"{len(examples)} examples, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - progress

    pad, end = token_id(tokenizer, END_OF_TEXT), token_id(tokenizer, END)
    assert tokenizer.get_vocab_size() == VOCABULARY
    model = llama(VOCABULARY, end, pad)
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    fit(model, examples, recipe, pad)
    torch.nn.Module.to(model, torch.bfloat16)
    model.save_pretrained(out)
    ends = {"eos_token_id": [end, pad], "pad_token_id": pad}
    # After save_pretrained, which writes a generation_config.json of its own, with one end token.
    (out / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")


if __name__ == "__main__":
    main()
