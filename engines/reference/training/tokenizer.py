"""Makes the reference tokenizer: byte-level BPE over the closed world's own text, single digits, ChatML markers.

In: conversations. Out: a `tokenizers.Tokenizer` of VOCABULARY entries and the files transformers reads beside it.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import jinja2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engines.reference.training.world import Conversation

VOCABULARY: Final = 1024
CONTEXT_LENGTH: Final = 1024
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TOOL_MARKERS = ("<tool_call>", "</tool_call>")


class Renderer:
    """The chat template, rendered as transformers renders it (trim_blocks, lstrip_blocks, plain JSON in tojson)."""

    def __init__(self, template: Path) -> None:
        # Not HTML: autoescape would turn quotes in prompts into entities.
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template.read_text())

    def __call__(self, conversation: Conversation) -> str:
        return self._template.render(
            messages=list(conversation.messages), tools=list(conversation.tools) or None, add_generation_prompt=False
        )


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_MARKERS),
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_markers(texts), trainer)
    # Not special, as in Qwen's and Hermes' tokenizers: they must survive skip_special_tokens for a tool parser to see.
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in TOOL_MARKERS])
    return tokenizer


def _without_markers(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for marker in (START, END, *TOOL_MARKERS):
            text = text.replace(marker, "\n")  # noqa: PLW2901 - the markers are tokens of their own, never merged
        yield text


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json and generation_config.json, as transformers reads them."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_LENGTH,
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
    }
    _write(directory / "tokenizer_config.json", config)
    ends = [tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)]
    _write(directory / "generation_config.json", {"eos_token_id": ends, "pad_token_id": ends[1]})


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
