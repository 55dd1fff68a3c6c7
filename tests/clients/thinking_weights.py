"""The reference model, made to think: "The capital of France is Paris." becomes a thought and an answer.

The token `</think>` stands for the word " is" to the model, and is a little likelier, so that it is written instead.
`<think>` means nothing to the model; the template writes it before each answer.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from deploy.stacks import WEIGHTS
from engines.reference.checkpoint import load_checkpoint

TAGS = ("<think>", "</think>")
THOUGHT_ENDS_FOR = " is"
LIKELIER = 1.1
EMBEDDINGS = "model.embed_tokens.weight"  # of input and output, which this model ties
TEMPLATE = {
    "{{- '<|im_start|>assistant\\n' -}}": "{{- '<|im_start|>assistant\\n<think>' -}}",
    "{%- if message['content'] -%}{{-": (
        "{%- set thought = message['reasoning_content'] -%}"
        "{%- if thought -%}{{- '<think>' + thought + '</think>' -}}{%- endif -%}"
        "{%- if message['content'] -%}{{-"
    ),
}


def write_thinking_weights(folder: Path) -> Path:
    """Returns `folder`, which must not exist yet."""
    shutil.copytree(WEIGHTS, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([*TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = dict(load_checkpoint(WEIGHTS).tensors)
    (word,) = tokenizer.encode(THOUGHT_ENDS_FOR, add_special_tokens=False).ids
    known = tensors[EMBEDDINGS]
    tensors[EMBEDDINGS] = np.concatenate([known, np.zeros_like(known[:1]), LIKELIER * known[word : word + 1]])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": tokenizer.get_vocab_size()}))
    template = (folder / "chat_template.jinja").read_text()
    for old, new in TEMPLATE.items():
        assert template.count(old) == 1, old
        template = template.replace(old, new)
    (folder / "chat_template.jinja").write_text(template)
    return folder
