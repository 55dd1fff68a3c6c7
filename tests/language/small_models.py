"""Two small models in directories of their own: a byte-level BPE (as Llama 3, Qwen), a SentencePiece one (as Llama 2).

Also nasty texts, decoders for answers and random cuts for the tests of this room.
"""

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from gateway.core import GenerateRequest, Prompt, SamplingParams
from gateway.language import ModelLanguage, TextDecoder

REFERENCE_WEIGHTS = Path(__file__).parents[2] / "engines" / "reference" / "weights"

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHATML = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}{{ raise_exception('no tool messages here') }}{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

LLAMA_2 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '[INST] ' + message.content + ' [/INST]' if message.role == 'user' else ' ' + message.content + ' ' + eos_token }}
{%- endfor -%}
"""

# One text for each way in which text was once lost or doubled between ids and clients.
NASTY_TEXTS = [
    "plain words, nothing else",
    " leading and trailing spaces ",
    "   three   spaces   everywhere   ",
    "\n\nnewlines\n\ttabs\t\r\nand returns",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "caf\u00e9 cafe\u0301 n\u0303 \u0e01\u0e33\u0e25\u0e31\u0e07",  # composed, combining marks, Thai
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",  # emoji joined by zero-width joiners
    "\U0001f1eb\U0001f1f7\U0001f1ef\U0001f1f5\U0001f44d\U0001f3fd",  # flags, skin tone
    "\U0001f600\U0001f600\U0001f600",
    "\ufffd is a character too \ufffd\ufffd",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "don't you've I'm , . ! ? ' s",
    '{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}',
    "\u00a0no-break\u2003em\u200bzero\u2581block",
    "\x00\x01\x7f control",
]


@dataclass(frozen=True)
class Model:
    """A loaded language, and the library's own tokenizer to compare it with."""

    name: str
    directory: Path
    language: ModelLanguage
    tokenizer: Tokenizer = field(repr=False)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def ids_of_bytes(self, data: bytes) -> list[int]:
        """One token for each byte, whatever merges the tokenizer would make."""
        if self.name == "sentencepiece":
            return [self._id(f"<0x{byte:02X}>") for byte in data]
        spelling: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]  # transformers' own table, untyped
        return [self._id(spelling[byte]) for byte in data]

    def full_decode(self, token_ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
        """Returns the answer's part of one decode of prompt and answer."""
        whole: str = self.tokenizer.decode([*prompt, *token_ids])
        return whole[len(self.tokenizer.decode(list(prompt))) :]

    def _id(self, token: str) -> int:
        token_id: int | None = self.tokenizer.token_to_id(token)
        assert token_id is not None, token
        return token_id


def build_byte_level(directory: Path, *, special: Sequence[str] = (), template: str = CHATML) -> Model:
    """`special`: more special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL_TOKENS, show_progress=False
    )
    tokenizer.train_from_iterator(NASTY_TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>"), AddedToken("\u20ac uro\u00e9")])  # not special, so shown
    tokenizer.add_special_tokens(list(special))
    return _write_and_load("byte_level", directory, tokenizer, template)


def build_sentencepiece(directory: Path) -> Model:
    specials = ["<unk>", "<s>", "</s>"]
    metaspace = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    ascii_texts = [text for text in NASTY_TEXTS if text.isascii()]  # everything else falls back to bytes
    letters = [chr(code) for code in range(0x21, 0x7F)]
    trainer = trainers.BpeTrainer(vocab_size=200, initial_alphabet=letters, show_progress=False)
    trained.train_from_iterator(ascii_texts, trainer)
    learnt = json.loads(trained.to_str())["model"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"], "\u2581\u2581", "\ufffd"]
    merges = [*map(tuple, learnt["merges"]), ("\u2581", "\u2581")]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(metaspace)
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return _write_and_load("sentencepiece", directory, tokenizer, LLAMA_2)


def _write_and_load(name: str, directory: Path, tokenizer: Tokenizer, template: str) -> Model:
    eos, bos = ("</s>", "<s>") if name == "sentencepiece" else ("<|im_end|>", None)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    files: dict[str, object] = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": bos},
        "config.json": {"model_type": "llama", "max_position_embeddings": 512, "vocab_size": 1000},
        "generation_config.json": {"eos_token_id": tokenizer.token_to_id(eos)},
    }
    for file, content in files.items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    return load_model(name, directory)


def load_model(name: str, directory: Path) -> Model:
    language = ModelLanguage.load(directory)
    return Model(name, directory, language, Tokenizer.from_file(str(directory / "tokenizer.json")))


UNLIMITED = SamplingParams(max_tokens=1_000_000)


def answer_decoder(
    model: Model,
    params: SamplingParams = UNLIMITED,
    stop: Sequence[str] = (),
    prompt: Sequence[int] = (1,),
    **shows: bool,
) -> TextDecoder:
    """Returns a decoder for an answer to `prompt`, which is one special token by default."""
    request = GenerateRequest("request", model.name, Prompt(tuple(prompt)), params, model.language.eos_token_ids)
    return model.language.decoder(request, stop, **shows)


def stream(decoder: TextDecoder, pieces: Iterable[Sequence[int]]) -> str:
    """Returns the text that a client receives of an answer that arrives in these pieces."""
    return "".join(decoder.feed(piece) for piece in pieces) + decoder.flush()


def longest_wait(work: Callable[[], object]) -> float:
    """The longest time that other threads had to wait for the interpreter, as a share of what `work` took."""
    longest, started = 0.0, time.perf_counter()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        woken = started
        while not working.done():
            time.sleep(0.001)
            woken, before = time.perf_counter(), woken
            longest = max(longest, woken - before)
    return longest / (time.perf_counter() - started)


def one_by_one(token_ids: Sequence[int]) -> list[list[int]]:
    return [[token_id] for token_id in token_ids]


def cut(token_ids: Sequence[int], rng: random.Random) -> list[list[int]]:
    """The ids in random pieces, empty ones and long ones among them."""
    pieces, start = [], 0
    while start < len(token_ids):
        length = rng.choice([0, 1, 1, 1, 2, 3, 7])
        pieces.append(list(token_ids[start : start + length]))
        start += length
    return pieces
