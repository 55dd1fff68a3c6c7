"""Reads a model's directory on disk: the tokenizer, the context length and the end tokens.

A path comes in; loaded values go out, or `UnusableTokenizer` with a message for the operator. No other module of this
room reads files.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

REQUIRED_FILES = ("tokenizer.json", "tokenizer_config.json", "config.json")


class UnusableTokenizer(Exception):
    """The directory cannot serve a model; the message names the file and its fault."""


def load_tokenizer(directory: Path) -> "PreTrainedTokenizerFast":
    for name in REQUIRED_FILES:
        _read_json(directory / name)  # transformers' own errors name no file
    with _without_import_advice():
        from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: PLC0415 - the import takes a second
    try:
        # trust_remote_code must be False: None asks on the terminal whether to run the directory's Python.
        loaded: object = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as exc:  # tokenizers raises Exception itself for a malformed file, transformers many kinds
        raise UnusableTokenizer(f"{directory}: the tokenizer cannot be loaded: {exc}") from exc
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise UnusableTokenizer(f"{directory / 'tokenizer.json'}: not a `tokenizers` tokenizer")
    # Some tokenizer.json files enable these; either would silently change a prompt.
    loaded.backend_tokenizer.no_truncation()
    loaded.backend_tokenizer.no_padding()
    return loaded


@dataclass(frozen=True, slots=True)
class Limits:
    """A model's limits by its configuration files. `vocab_size`: rows of its embedding, often padded; 0 if absent."""

    context_length: int
    eos_token_ids: tuple[int, ...]
    vocab_size: int


def read_limits(directory: Path, tokenizer: "PreTrainedTokenizerFast") -> Limits:
    config = _read_config(directory)
    vocab_size = config.get("vocab_size")
    return Limits(
        context_length=min(_read_positions(config, directory), int(tokenizer.model_max_length)),  # 1e30 when unset
        eos_token_ids=_read_eos_token_ids(config, directory, tokenizer),
        vocab_size=vocab_size if isinstance(vocab_size, int) else 0,
    )


def _read_positions(config: Mapping[str, object], directory: Path) -> int:
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        raise UnusableTokenizer(f"{directory / 'config.json'}: no max_position_embeddings, so no context length")
    return positions


def _read_eos_token_ids(
    config: Mapping[str, object], directory: Path, tokenizer: "PreTrainedTokenizerFast"
) -> tuple[int, ...]:
    """Returns the ids in generation_config.json (if absent, config.json, as in transformers), then the tokenizer's."""
    path = directory / "generation_config.json"
    named = (_read_json(path) if path.is_file() else config).get("eos_token_id")
    candidates = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    ids = tuple(dict.fromkeys(token_id for token_id in candidates if isinstance(token_id, int)))
    if not ids:
        raise UnusableTokenizer(f"{path}: no eos_token_id here nor in the tokenizer, so no answer would end")
    return ids


def _read_config(directory: Path) -> Mapping[str, object]:
    """Reads config.json. Multimodal models have their language model's part under `text_config`."""
    config = _read_json(directory / "config.json")
    text_config = config.get("text_config")
    return {**config, **text_config} if isinstance(text_config, dict) else config


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as exc:
        raise UnusableTokenizer(f"{path}: {exc.strerror}") from exc
    except ValueError as exc:
        raise UnusableTokenizer(f"{path}: not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise UnusableTokenizer(f"{path}: not a JSON object")
    return content


@contextmanager
def _without_import_advice() -> Iterator[None]:
    """Hides the advice that importing transformers without PyTorch logs on stderr; tokenizers need none."""

    def is_serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger = logging.getLogger("transformers")
    logger.addFilter(is_serious)
    try:
        yield
    finally:
        logger.removeFilter(is_serious)
