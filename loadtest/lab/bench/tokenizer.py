"""A tokenizer for the id wire: a byte-level BPE of more than 100,000 entries whose ids can stand for a token's stamp.

In: a cache directory. Out: a model's directory (tokenizer, chat template, configuration) and its first stamp ids.

The merges are learned from the source text of this machine's Python library, so that a prompt is split as a real
tokenizer splits it. Added are 100,000 tokens of five digits (times) and 10,000 of a letter and four digits (places).
"""

import itertools
import json
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from loadtest.mock_engine.engine import IdSpace

LEARNED = 32_000
CORPUS_BYTES = 12_000_000
CONTEXT = 131_072
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
VERSION = "v1"

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class StampTokenizer:
    directory: Path
    ids: IdSpace


def prepare(cache: Path, learned: int = LEARNED, corpus_bytes: int = CORPUS_BYTES) -> StampTokenizer:
    """Builds the tokenizer on first use, which takes some ten seconds. `learned`: entries learned from the corpus."""
    directory = cache / f"tokenizer-{VERSION}-{learned}"
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            built = Path(scratch, "built")
            built.mkdir()
            _write(built, learned, corpus_bytes)
            shutil.move(built, directory)
    return StampTokenizer(directory, find_ids(Tokenizer.from_file(str(directory / "tokenizer.json"))))


def find_ids(tokenizer: Tokenizer) -> IdSpace:
    vocabulary = tokenizer.get_vocab()
    return IdSpace(vocabulary["00000"], vocabulary["q0000"])


def write_long_prompt(stamps: StampTokenizer, model: str, tokens: int, path: Path) -> None:
    """Writes the body of a request whose prompt has about `tokens` tokens. The load client replaces its "########" by a
    number: no two requests are equal.
    """
    tokenizer = Tokenizer.from_file(str(stamps.directory / "tokenizer.json"))
    ids: list[int] = []
    for text in _corpus(8 * tokens):
        ids += tokenizer.encode(text, add_special_tokens=False).ids
    prompt = tokenizer.decode(ids[:tokens])
    messages = [{"role": "user", "content": f"########\n{prompt}"}]
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0.7, "stream": True}
    path.write_text(json.dumps(body))


def _write(directory: Path, learned: int, corpus_bytes: int) -> None:
    vocabulary, merges = extend(_learn(learned, corpus_bytes))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=False))
    _set_byte_level(tokenizer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(directory / "tokenizer.json"))
    files: dict[str, dict[str, object]] = {
        "config": {"max_position_embeddings": CONTEXT, "vocab_size": tokenizer.get_vocab_size()},
        "generation_config": {"eos_token_id": tokenizer.token_to_id("<|im_end|>")},
        "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT}
        | {"eos_token": "<|im_end|>", "chat_template": TEMPLATE},
    }
    for name, values in files.items():
        (directory / f"{name}.json").write_text(json.dumps(values, indent=2))


def extend(learned: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Adds the stamps' vocabulary and merges to the learned ones: every run of two, three or five digits is a token."""
    model = json.loads(learned.to_str())["model"]
    vocabulary: dict[str, int] = dict(model["vocab"])
    merges = [(left, right) for left, right in model["merges"]]
    for left, right in _stamp_merges():
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    return vocabulary, merges


def _stamp_merges() -> Iterator[tuple[str, str]]:
    """Yields the stamps' merges, in an order that gives consecutive ids to times, and to places."""
    two = [f"{n:02}" for n in range(100)]
    three = [f"{n:03}" for n in range(1000)]
    yield from ((text[0], text[1]) for text in two)
    yield from ((text[:2], text[2]) for text in three)
    yield from itertools.product(two, three)
    yield from (("q", text) for text in two)
    yield from ((f"q{left}", right) for left in two for right in two)


def _learn(size: int, corpus_bytes: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    _set_byte_level(tokenizer)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    # Without digits: learned runs of digits would take ids between those of the stamps.
    texts = ("".join(c for c in text if not c.isdigit()) for text in _corpus(corpus_bytes))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _set_byte_level(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()


def _corpus(size: int) -> Iterator[str]:
    """Yields `size` characters of text that every installation of Python has, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    left = size
    for path in sorted(library.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text(errors="ignore")
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return
