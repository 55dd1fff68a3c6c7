"""Greedy answers and their logits by transformers in float32; runs under an interpreter with torch and transformers.

`python transformers_oracle.py MODEL_DIR ASKED.npz GOLDEN.npz`. ASKED holds `prompts` [n, longest], -1 after each one's
end, and how many `tokens` to generate; GOLDEN the `tokens` [n, tokens] and the `logits` [n, tokens, vocab] behind them.
"""

import sys

import numpy as np
import torch
from transformers import LlamaForCausalLM


def generate(model: LlamaForCausalLM, prompts: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts of one length, so that nothing is padded; end tokens are tokens like any other."""
    cache, fed, picked, logits = None, prompts, [], []
    for _ in range(tokens):
        with torch.inference_mode():
            output = model(input_ids=fed, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits[:, -1])
        fed = logits[-1].argmax(dim=1, keepdim=True)
        picked.append(fed)
    return torch.cat(picked, dim=1), torch.stack(logits, dim=1)


def main(model_dir: str, asked_file: str, golden_file: str) -> None:
    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    asked = np.load(asked_file)
    prompts, count = asked["prompts"], int(asked["tokens"])
    lengths = (prompts >= 0).sum(axis=1)
    tokens = np.zeros((len(prompts), count), np.int64)
    logits = np.zeros((len(prompts), count, model.config.vocab_size), np.float32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        picked, behind = generate(model, torch.from_numpy(prompts[rows, :length]), count)
        tokens[rows], logits[rows] = picked.numpy(), behind.numpy()
    np.savez(golden_file, tokens=tokens, logits=logits)


if __name__ == "__main__":
    main(*sys.argv[1:])
