"""The one model of this server: its name, limits, tokenizer and runner, and the answers in flight.

In: the model directory. Out: ids for text and text for ids. Knows no HTTP.
"""

import json
import uuid
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from engines.reference.launch import Abilities, Runs


class Abortable(Protocol):
    """An answer in flight, answer.AnswerInFlight, which is built on this module."""

    def abort(self) -> None: ...


class ServedModel:
    def __init__(self, name: str, directory: Path, abilities: Abilities, runner: Runs) -> None:
        self.name = name
        self.directory = directory
        self.runner = runner
        self.max_model_len = abilities.context_length
        self.vocab_size = abilities.vocab_size
        self.eos_token_ids = read_eos_token_ids(directory)
        self.answers: dict[str, Abortable] = {}  # in flight, by the id that clients see; of equal ids the last
        self.finished = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.shows_cached = False  # prompt tokens from a prefix cache, in usage
        self.computes = abilities.computes
        self.grammars = abilities.grammars
        self.embed = abilities.embed  # reads weights alone, so that it needs no turn among the answers
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._runner_ids = count(1)

    def new_id(self) -> str:
        return uuid.uuid4().hex[:16]

    def next_runner_id(self) -> str:
        """Returns an id of our own for the runner, because clients choose request ids."""
        return str(next(self._runner_ids))

    def abort_all(self) -> None:
        """End every answer with the tokens so far, so that no client waits for a server that ends."""
        for answer in list(self.answers.values()):
            answer.abort()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of the ids, special tokens included."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def token_strings(self, token_ids: Sequence[int]) -> list[str | None]:
        return [self._tokenizer.id_to_token(token_id) for token_id in token_ids]

    def decoder(self, prompt: Sequence[int]) -> "Decoder":
        return Decoder(self._tokenizer, prompt)


class Decoder:
    """Ids to text, piece by piece; special tokens are dropped, as vLLM does by default."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join(self._stream.step(self._tokenizer, token_id) or "" for token_id in token_ids)


def read_eos_token_ids(directory: Path) -> tuple[int, ...]:
    """Reads end ids, the principal one, of config.json, first: vLLM reports a stop at another one as a stop token."""
    ids: list[int] = []
    for name in ("config.json", "generation_config.json"):
        path = directory / name
        eos = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        ids += eos if isinstance(eos, list) else [] if eos is None else [eos]
    return tuple(dict.fromkeys(ids))
