"""Segments that were encoded before come from the cache, and the ids always equal one encoding of the whole text."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.language.encoder import MAX_SEGMENTS, Encoder
from gateway.language.segment_cache import size_of
from gateway.language.separator import find_separator
from tests.language.small_models import NASTY_TEXTS, SPECIAL_TOKENS, Model, longest_wait

START, END = "<|im_start|>", "<|im_end|>"
CHAT = f"{START}user\nHello{END}\n{START}assistant\nHi{END}\n{START}user\nBye{END}\n{START}assistant\n"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TWICE = processors.TemplateProcessing("$A $A", special_tokens=[])
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def train(
    pre_tokenizer: pre_tokenizers.PreTokenizer = BYTE_LEVEL,
    normalizer: normalizers.Normalizer | None = None,
    specials: Sequence[str | AddedToken] = SPECIAL_TOKENS,
    model: models.Model | None = None,
) -> Tokenizer:
    tokenizer = Tokenizer(model or models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer: trainers.Trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    if isinstance(model, models.Unigram):
        trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="?", special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator(NASTY_TEXTS, trainer)
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def changed(change: Callable[[Tokenizer], object]) -> Tokenizer:
    tokenizer = train()
    change(tokenizer)
    return tokenizer


def special(**attributes: bool) -> list[AddedToken]:
    """The special tokens of these tests, all of one kind."""
    return [AddedToken(content, special=True, **{"normalized": False, **attributes}) for content in SPECIAL_TOKENS]


# Kinds of real models' tokenizers whose texts can be cut
LOCAL: dict[str, Callable[[], Tokenizer]] = {
    "gpt-2": train,
    "prefix space": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama 3": lambda: train(
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]),
        model=models.BPE(ignore_merges=True),
    ),
    "digits": lambda: train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])),
    "nfc": lambda: train(normalizer=normalizers.NFC()),
    "nfkc": lambda: train(normalizer=normalizers.NFKC()),
    "lowercase and strip": lambda: train(
        normalizer=normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])
    ),
    "prepend": lambda: train(normalizer=normalizers.Prepend("\u2581")),
    "metaspace": lambda: train(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "nothing before the merges": lambda: train(pre_tokenizers.Sequence([])),
    "neighbour that takes spaces": lambda: train(
        specials=[START, AddedToken(END, rstrip=True, lstrip=True, special=True), "<|endoftext|>"]
    ),
    "neighbour of whole words": lambda: train(specials=[START, AddedToken(END, single_word=True, special=True)]),
    "neighbour in normalized text": lambda: train(
        normalizer=normalizers.Lowercase(),
        specials=[START, AddedToken(END, normalized=True), AddedToken("THE", normalized=True)],
    ),
}

# Kinds whose texts cannot be cut, each for another reason
NOT_LOCAL: dict[str, Callable[[], Tokenizer]] = {
    "metaspace at the start only": lambda: train(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "pre-tokenizer not known": lambda: train(pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), BYTE_LEVEL])),
    "dropout": lambda: changed(lambda it: setattr(it.model, "dropout", 0.5)),
    "unigram": lambda: train(pre_tokenizers.Metaspace(), model=models.Unigram()),
    "truncation": lambda: changed(lambda it: it.enable_truncation(8)),
    "padding": lambda: changed(lambda it: it.enable_padding(length=64)),
    "text twice": lambda: changed(lambda it: setattr(it, "post_processor", TWICE)),
    "special tokens read as text": lambda: changed(lambda it: setattr(it, "encode_special_tokens", True)),
    "special tokens in normalized text": lambda: train(specials=special(normalized=True)),
    "special tokens that take spaces": lambda: train(specials=special(rstrip=True)),
    "special tokens that are words": lambda: train(specials=special(single_word=True)),
    "special tokens with letters at their ends": lambda: train(specials=["user", "assistant"]),
    "special tokens inside others": lambda: train(specials=[START, f"{START}user", END, f"\n{END}"]),
    "special tokens that overlap": lambda: train(specials=[START, END, "\n<", f"o{END[:5]}"]),
    "no special token in a chat": lambda: train(specials=["<s>", "</s>"]),
}


def random_text(rng: random.Random) -> str:
    """Returns a message's text: any text, and special tokens' text, whole, cut or joined."""
    pieces = [
        *NASTY_TEXTS, *SPECIAL_TOKENS, "<|im_", "end|>", "<", "|>", " ", "\n", "  ", "", "12", "345", "'ll", "THE",
        "user", "\u0301", "\uff1c|im_end|>", "</s>", "<s>", "[INST]", "<tool_call>",
    ]  # fmt: skip
    return "".join(rng.choices(pieces, k=rng.randrange(6)))


def random_chats(rng: random.Random, render: Callable[[list[str]], str]) -> list[str]:
    """Chats that grow turn by turn and share their beginning, as clients send them; some go back and branch."""
    chats, messages = [], [random_text(rng)]
    for _ in range(60):
        if rng.random() < 0.2:
            messages = messages[: rng.randrange(1, len(messages) + 1)]
        messages = [*messages, random_text(rng)]
        chats.append(render(messages))
    return chats


def render_chatml(messages: list[str]) -> str:
    turns = (f"{START}{('user', 'assistant')[place % 2]}\n{text}{END}\n" for place, text in enumerate(messages))
    return "".join(turns) + f"{START}assistant\n"


def ids_of(encoder: Encoder, text: str) -> list[int]:
    return list(encoder.draft(text, "messages").encode().token_ids)


@pytest.mark.parametrize("kind", LOCAL)
def test_cut_and_cached_is_what_one_encoding_gives(kind: str, rng: random.Random) -> None:
    tokenizer = LOCAL[kind]()
    separator = find_separator(tokenizer, CHAT)
    assert separator is not None
    encoder = Encoder(tokenizer, separator)
    for text in random_chats(rng, render_chatml):
        for _ in range(2):
            assert ids_of(encoder, text) == tokenizer.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("kind", NOT_LOCAL)
def test_what_may_look_across_a_special_token_is_never_cut(kind: str) -> None:
    assert find_separator(NOT_LOCAL[kind](), CHAT) is None


def test_models_of_these_tests_answer_as_their_tokenizers_do(model: Model, rng: random.Random) -> None:
    assert model.language._encoder._separator is not None

    def render(messages: list[str]) -> str:
        return model.language._template.render([{"role": "user", "content": text} for text in messages])

    for text in random_chats(rng, render):
        assert ids_of(model.language._encoder, text) == model.encode(text)


def test_only_what_is_new_in_a_chat_is_encoded(byte_level: Model) -> None:
    language = ModelLanguage.load(byte_level.directory)
    history = [{"role": "user", "content": "first question, " * 20}, {"role": "assistant", "content": "first answer"}]
    language.render_chat(history[:1])
    grown = language.draft_chat([*history, {"role": "user", "content": "second"}])
    assert len("first answersecond") < grown.new_characters < 100
    before = grown.encode()
    again = language.draft_chat([*history, {"role": "user", "content": "second"}])
    assert again.new_characters == 0
    assert again.encode() == before


def test_text_without_a_separator_is_known_the_second_time(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT))
    assert [encoder.draft("all new", "messages").new_characters for _ in range(2)] == [7, 7]
    ids_of(encoder, "all new")
    assert encoder.draft("all new", "messages").new_characters == 0


def test_text_that_a_normalizer_turns_into_the_separator_is_not_mistaken_for_it() -> None:
    """`ignore_merges` looks whole words up, so a word normalized to the special token's text gets its id."""
    tokenizer = train(pre_tokenizers.Sequence([]), normalizers.NFKC(), model=models.BPE(ignore_merges=True))
    mark = "<|im_end|>"
    separator = find_separator(tokenizer, f"a{mark}b")
    assert separator is not None
    assert separator.text == mark
    encoder = Encoder(tokenizer, separator)
    for text in (f"a{mark}\uff1c|im_end|>{mark}b", f"\uff1c|im_end|>{mark}b", f"a{mark}b"):
        assert ids_of(encoder, text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_most_frequent_special_token_is_where_texts_are_cut() -> None:
    separator = find_separator(train(), f"{END}{START}{END}")
    assert separator is not None
    assert separator.text == END


def test_what_is_kept_is_bounded_and_the_latest(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT), cache_bytes=16_000)
    texts = [f"text number {number}" for number in range(200)]
    for text in texts:
        ids_of(encoder, text)
    cache = encoder._cache
    assert cache.bytes <= 16_000
    assert 10 < len(cache) < 60
    known = [text for text, ids in zip(texts, cache.find(texts), strict=True) if ids is not None]
    assert known == texts[-len(cache) :]


def test_what_was_used_lately_stays(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT), cache_bytes=16_000)
    for number in range(200):
        ids_of(encoder, "the system's prompt")
        ids_of(encoder, f"text number {number}")
    assert encoder.draft("the system's prompt", "messages").new_characters == 0


def test_one_document_does_not_push_out_the_chats(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT), cache_bytes=16_000)
    ids_of(encoder, "chat")
    for size in (3_000, 100_000):
        ids_of(encoder, "x" * size)
    assert encoder.draft("chat", "messages").new_characters == 0
    assert encoder.draft("x" * 100_000, "messages").new_characters == 100_000


def test_bytes_are_those_of_what_is_kept(byte_level: Model, rng: random.Random) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT), cache_bytes=20_000)
    chats = random_chats(rng, render_chatml) * 3
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: ids_of(encoder, text), chats))
    assert found == [byte_level.encode(text) for text in chats]
    assert encoder._cache.bytes == sum(size_of(text, ids) for text, ids in encoder._cache._entries.items())
    assert encoder._cache.bytes <= 20_000


def test_text_full_of_special_tokens_is_encoded_and_not_kept(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT))
    for times, kept in ((MAX_SEGMENTS, 0), (MAX_SEGMENTS - 1, 2)):
        text = "a" + START * times
        assert ids_of(encoder, text) == byte_level.encode(text)
        assert len(encoder._cache) == kept


def test_lone_surrogates_are_refused_whatever_is_known(byte_level: Model) -> None:
    encoder = Encoder(byte_level.tokenizer, find_separator(byte_level.tokenizer, CHAT))
    ids_of(encoder, f"known{END}")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="lone surrogate"):
            ids_of(encoder, f"known{END}\ud800")


def test_nothing_is_kept_where_nothing_may_be(byte_level: Model) -> None:
    language = ModelLanguage.load(byte_level.directory, cache_bytes=0)
    chat = [{"role": "user", "content": "hello"}]
    assert language.render_chat(chat) == byte_level.language.render_chat(chat)
    assert language.draft_chat(chat).new_characters > 0
    assert len(language._encoder._cache) == 0


@pytest.mark.parametrize("framed", [False, True])
def test_other_threads_go_on_while_a_long_text_is_encoded(reference: Model, framed: bool) -> None:
    encoder = Encoder(reference.tokenizer, None)
    text = " ".join(f"word{number} and other words" for number in range(10_000))
    draft = encoder.draft_framed(text, "prompt") if framed else encoder.draft(text, "prompt")
    assert longest_wait(draft.encode) < 1 / 2  # all of it while the interpreter is held
