"""Streamed text equals one decode of the whole answer by the tokenizers library and by transformers."""

import random
import time

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer

from gateway.core import SamplingParams
from gateway.language.vocabulary import Vocabulary
from tests.language.small_models import NASTY_TEXTS, Model, answer_decoder, cut, one_by_one, stream

EVERYTHING = SamplingParams(max_tokens=1_000_000, ignore_eos=True)


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_streamed_text_is_the_decode_of_all_ids(model: Model, text: str, rng: random.Random) -> None:
    ids = model.encode(text)
    expected = model.tokenizer.decode(ids)
    assert stream(answer_decoder(model), one_by_one(ids)) == expected
    for _ in range(20):
        assert stream(answer_decoder(model), cut(ids, rng)) == expected


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_streamed_text_continues_the_prompt(model: Model, text: str) -> None:
    prompt, ids = model.encode("Say it: "), model.encode(text)
    assert stream(answer_decoder(model, prompt=prompt), one_by_one(ids)) == model.full_decode(ids, prompt)


def test_first_token_keeps_its_space_after_a_prompt_with_text(sentencepiece: Model) -> None:
    ids = sentencepiece.encode("plain words")
    assert stream(answer_decoder(sentencepiece, prompt=sentencepiece.encode("x")), one_by_one(ids)) == " plain words"
    assert stream(answer_decoder(sentencepiece, prompt=[1]), one_by_one(ids)) == "plain words"


def test_transformers_decodes_to_the_same_text(model: Model) -> None:
    theirs = AutoTokenizer.from_pretrained(model.directory)
    for text in NASTY_TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ids == model.encode(text)
        assert stream(answer_decoder(model), one_by_one(ids)) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", [text for text in NASTY_TEXTS if not text.isascii()])
def test_characters_split_into_single_bytes_come_out_whole(model: Model, text: str) -> None:
    ids = model.ids_of_bytes(text.encode())
    decoder = answer_decoder(model)
    shown = [decoder.feed([token_id]) for token_id in ids]
    assert "".join(shown) + decoder.flush() == text
    # Each character is shown with its last byte, save U+FFFD itself, which looks like an incomplete one.
    if "\ufffd" not in text:
        assert [piece for piece in shown if piece] == list(text)


@pytest.mark.parametrize("character", ["\u00e9", "\u4f60", "\U0001f600"])
def test_answer_that_ends_inside_a_character_shows_what_a_full_decode_shows(model: Model, character: str) -> None:
    whole = character.encode()
    for end in range(1, len(whole)):
        ids = [*model.encode("ok"), *model.ids_of_bytes(whole[:end])]
        assert stream(answer_decoder(model), one_by_one(ids)) == model.tokenizer.decode(ids)


def test_invalid_byte_run_keeps_the_characters_already_shown(sentencepiece: Model) -> None:
    ids = [*sentencepiece.ids_of_bytes("\u4f60".encode() + b"\xe5\xa5"), *sentencepiece.encode("ok")]
    assert sentencepiece.tokenizer.decode(ids) == "\ufffd" * 5 + " ok"
    for pieces in (one_by_one(ids), [ids]):
        assert stream(answer_decoder(sentencepiece), pieces) == "\u4f60\ufffd\ufffd ok"


def test_random_bytes_decode_as_the_library_decodes_them(byte_level: Model, rng: random.Random) -> None:
    for _ in range(300):
        data = bytes(
            rng.choice(b"a\x80\xbf\xc2\xc0\xe0\xe4\xed\xa0\xf0\x9f\x98\xf4\x90\xf5\xff\xef\xbf\xbd") for _ in range(12)
        )
        ids = byte_level.ids_of_bytes(data)
        assert stream(answer_decoder(byte_level), cut(ids, rng)) == byte_level.tokenizer.decode(ids)


def test_random_ids_decode_as_the_library_decodes_them(model: Model, rng: random.Random) -> None:
    """With special tokens, added tokens and ids outside the vocabulary, but without byte tokens."""
    vocabulary = [token_id for token_id in range(model.language.vocab_size) if not _is_byte_token(model, token_id)]
    for _ in range(200):
        ids = rng.choices(vocabulary, k=30)
        assert stream(answer_decoder(model, EVERYTHING), cut(ids, rng)) == model.tokenizer.decode(ids)


def test_every_token_alone_decodes_as_the_library_decodes_it(model: Model) -> None:
    for token_id in range(model.language.vocab_size):
        assert stream(answer_decoder(model, EVERYTHING), [[token_id]]) == model.tokenizer.decode([token_id])


@pytest.mark.parametrize("outside", [-1, 1_000_000, 2**32, -(2**63)])
def test_ids_outside_any_vocabulary_show_nothing(model: Model, outside: int) -> None:
    ids = model.encode("before after")
    middle = len(ids) // 2
    pieces = one_by_one([*ids[:middle], outside, *ids[middle:]])
    assert stream(answer_decoder(model), pieces) == "before after"


def test_special_tokens_show_nothing_but_added_tokens_do(byte_level: Model) -> None:
    ids = byte_level.encode("a<|im_start|>b<tool_call>c<|endoftext|>d")
    assert stream(answer_decoder(byte_level, EVERYTHING), one_by_one(ids)) == "ab<tool_call>cd"


def test_special_token_inside_a_character_does_not_break_it(model: Model) -> None:
    first, *rest = model.ids_of_bytes("\u4f60".encode())
    eos = model.language.eos_token_ids[0]
    assert stream(answer_decoder(model, EVERYTHING), one_by_one([first, eos, *rest])) == "\u4f60"


@pytest.mark.parametrize("what", ["special", "replacement", "bad byte"])
def test_time_is_linear_in_the_answer(model: Model, what: str) -> None:
    unit = {
        "special": [model.language.eos_token_ids[0]],
        "replacement": model.encode("\ufffd"),
        "bad byte": model.ids_of_bytes(b"\xff"),
    }[what]

    def seconds(tokens: int) -> float:
        ids = one_by_one(unit * tokens)
        decoder = answer_decoder(model, EVERYTHING)
        start = time.process_time()
        stream(decoder, ids)
        return time.process_time() - start

    short, long = min(seconds(1_000) for _ in range(3)), seconds(16_000)
    assert long < 16 * 5 * short  # a quadratic decoder takes 256 times as long


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.WordPiece(prefix="a", cleanup=False),
        decoders.BPEDecoder(suffix="c"),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip("a", 0, 0)]),
    ],
)
def test_any_other_decoder_streams_as_it_decodes(decoder: decoders.Decoder | None, rng: random.Random) -> None:
    tokens = ["\u2581", "\u2581\u2581", "\u2581a", "\u2581\u2581ab", "a", "ab", "ba", "bb", "c", "\u00e4", "<s>"]
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="<s>"))
    tokenizer.add_special_tokens(["<s>"])
    if decoder is not None:
        tokenizer.decoder = decoder
    vocabulary = Vocabulary(tokenizer)
    for _ in range(200):
        prompt, ids = rng.choices(range(11), k=rng.randint(0, 6)), rng.choices(range(12), k=10)
        detokenizer = vocabulary.detokenizer(prompt)
        text = "".join(detokenizer.feed(token_id) for token_id in ids) + detokenizer.flush()
        assert tokenizer.decode(prompt) + text == tokenizer.decode(prompt + ids)


def _is_byte_token(model: Model, token_id: int) -> bool:
    return (model.tokenizer.id_to_token(token_id) or "").startswith("<0x")
