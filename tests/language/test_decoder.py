"""Which tokens and strings end an answer, which text is shown then, and how many tokens count."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from gateway.core import SamplingParams
from gateway.errors import InvalidRequest
from gateway.language import ToolFormat
from tests.language.small_models import UNLIMITED, Model, answer_decoder, build_byte_level, cut, one_by_one, stream

EVERYTHING = SamplingParams(max_tokens=1_000_000, ignore_eos=True)
MISTRAL = (
    "{% for t in tools or [] %}[AVAILABLE_TOOLS]{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}[TOOL_CALLS]{% endif %}{% endfor %}"
)


def test_eos_counts_and_shows_nothing(model: Model) -> None:
    ids = [*model.encode("the end"), model.language.eos_token_ids[0]]
    decoder = answer_decoder(model)
    assert stream(decoder, one_by_one(ids)) == "the end"
    assert decoder.completion_tokens == len(ids)
    assert not decoder.stopped  # the engine ended by itself


def test_every_eos_of_the_model_ends_the_answer(reference: Model) -> None:
    assert reference.language.eos_token_ids == (2, 0)
    for eos in reference.language.eos_token_ids:
        decoder = answer_decoder(reference)
        assert stream(decoder, [[*reference.encode("bye"), eos]]) == "bye"


@pytest.mark.parametrize(("includes", "shown"), [(False, "a"), (True, "a<tool_call>")])
def test_stop_token_that_is_plain_text_shows_where_it_is_part_of_the_answer(
    byte_level: Model, includes: bool, shown: str
) -> None:
    ids = byte_level.encode("a<tool_call>b")
    decoder = answer_decoder(byte_level, replace(UNLIMITED, stop_token_ids=(ids[1],)), include_stop=includes)
    assert stream(decoder, one_by_one(ids)) == shown
    assert decoder.completion_tokens == 2


def test_stop_token_before_min_tokens_is_part_of_the_answer(byte_level: Model) -> None:
    tag = byte_level.encode("<tool_call>")[0]
    params = replace(UNLIMITED, stop_token_ids=(tag,), min_tokens=3)
    assert stream(answer_decoder(byte_level, params), [[tag, tag, tag]]) == "<tool_call><tool_call>"


def test_ignored_eos_neither_ends_nor_shows(model: Model) -> None:
    eos = model.language.eos_token_ids[0]
    ids = [*model.encode("on"), eos, eos, *model.ids_of_bytes(b"!")]
    decoder = answer_decoder(model, replace(UNLIMITED, ignore_eos=True))
    assert stream(decoder, one_by_one(ids)) == "on!"
    assert decoder.completion_tokens == len(ids)


def test_ids_after_the_end_neither_count_nor_show_and_ask_for_a_stop(model: Model) -> None:
    ids = model.encode("answer")
    decoder = answer_decoder(model)
    text = decoder.feed([*ids, model.language.eos_token_ids[0]])
    assert not decoder.stopped
    assert text + decoder.feed(ids) + decoder.flush() == "answer"
    assert decoder.completion_tokens == len(ids) + 1
    assert decoder.stopped


def test_stop_token_inside_a_character_leaves_a_replacement(byte_level: Model) -> None:
    ids = [*byte_level.ids_of_bytes("\u4f60".encode()[:2]), byte_level.language.eos_token_ids[0]]
    assert stream(answer_decoder(byte_level), one_by_one(ids)) == "\ufffd"


@pytest.mark.parametrize(
    ("text", "includes", "shown", "counted"),
    [
        ("one STOP two", False, "one ", "one STOP"),
        ("one STOP two", True, "one STOP", "one STOP"),
        ("STOP", False, "", "STOP"),
    ],
)
def test_stop_string_ends_the_answer_and_later_tokens_do_not_count(
    model: Model, text: str, includes: bool, shown: str, counted: str
) -> None:
    ids = [token_id for byte in text.encode() for token_id in model.ids_of_bytes(bytes([byte]))]
    for pieces in (one_by_one(ids), [ids], [ids[:6], ids[6:]]):
        decoder = answer_decoder(model, stop=["STOP"], include_stop=includes)
        assert stream(decoder, pieces) == shown
        assert (decoder.stopped, decoder.completion_tokens) == (True, len(counted))


def test_end_token_is_seen_only_where_special_tokens_are_and_it_is_part_of_the_answer(model: Model) -> None:
    ids = [*model.encode("the end"), model.language.eos_token_ids[0]]
    end = model.tokenizer.id_to_token(ids[-1])
    seen = {
        (include, special): stream(answer_decoder(model, include_stop=include, shows_special=special), one_by_one(ids))
        for include in (False, True)
        for special in (False, True)
    }
    assert seen.pop((True, True)).replace(" ", "") == f"theend{end}"
    assert {text.lstrip() for text in seen.values()} == {"the end"}


def test_special_tokens_are_seen_where_they_are_asked_for(byte_level: Model, rng: random.Random) -> None:
    text = "a<|im_start|>b<tool_call>\u4f60<|endoftext|><|endoftext|> d"
    ids = byte_level.encode(text)
    for _ in range(20):
        assert stream(answer_decoder(byte_level, EVERYTHING, shows_special=True), cut(ids, rng)) == text
    assert stream(answer_decoder(byte_level, EVERYTHING), [ids]) == "ab<tool_call>\u4f60 d"


def test_special_tokens_show_as_the_library_shows_them(model: Model, rng: random.Random) -> None:
    """Also between special tokens: no tokenizer that we load puts spaces there."""
    special = [*model.tokenizer.get_added_tokens_decoder()]
    for _ in range(100):
        ids = [*model.encode("go"), *rng.choices(special, k=4), *model.encode("on"), *rng.choices(special, k=2)]
        before, whole = (model.tokenizer.decode(part, skip_special_tokens=False) for part in ([1], [1, *ids]))
        text = stream(answer_decoder(model, EVERYTHING, shows_special=True), cut(ids, rng))
        assert before + text == whole
        assert "> <" not in whole


def test_only_the_markers_of_tool_calls_are_seen_by_their_parser(tmp_path: Path) -> None:
    model = build_byte_level(tmp_path, special=["[TOOL_CALLS]"], template=MISTRAL)
    assert model.language.tool_format is ToolFormat.MISTRAL
    ids = model.encode("[TOOL_CALLS][]<|endoftext|>")
    seen = stream(answer_decoder(model, EVERYTHING, shows_markers=True), one_by_one(ids))
    assert (seen, stream(answer_decoder(model, EVERYTHING), [ids])) == ("[TOOL_CALLS][]", "[]")


def test_stop_string_is_found_at_every_split_of_its_characters(byte_level: Model) -> None:
    stop = "\U0001f6d1\u505c"
    ids = byte_level.ids_of_bytes(f"go {stop} on".encode())
    for split in range(len(ids) + 1):
        decoder = answer_decoder(byte_level, stop=[stop])
        assert stream(decoder, [ids[:split], ids[split:]]) == "go "
        assert decoder.completion_tokens == len(f"go {stop}".encode())


def test_text_held_for_a_stop_string_comes_out_at_the_end(model: Model) -> None:
    ids = [*model.ids_of_bytes(b"it is ST"), model.language.eos_token_ids[0]]
    decoder = answer_decoder(model, stop=["STOP"])
    held_back = "".join(decoder.feed([token_id]) for token_id in ids)
    assert (held_back, decoder.flush(), decoder.flush()) == ("it is ", "ST", "")
    assert not decoder.stopped


def test_stop_string_may_end_in_a_character_that_only_the_end_completes(byte_level: Model) -> None:
    decoder = answer_decoder(byte_level, stop=["k\ufffd"])
    assert decoder.feed(byte_level.ids_of_bytes(b"ok\xf0")) == "o"
    assert (decoder.flush(), decoder.stopped) == ("", True)


@pytest.mark.parametrize(
    ("min_tokens", "expected", "tokens"),
    [(0, "x", 2), (1, "x", 2), (2, "x.x", 4), (3, "x.x", 4), (4, "x.x.x", 6), (6, "x.x.x.", 6), (9, "x.x.x.", 6)],
)
def test_stop_string_is_matched_only_in_tokens_after_min_tokens(
    byte_level: Model, min_tokens: int, expected: str, tokens: int
) -> None:
    """vLLM's rule: the text of the first min_tokens tokens cannot complete a match."""
    ids = byte_level.ids_of_bytes(b"x.x.x.")
    for pieces, ignores in product((one_by_one(ids), [ids]), (False, True)):
        params = replace(UNLIMITED, min_tokens=min_tokens, ignore_eos=ignores)
        decoder = answer_decoder(byte_level, params, stop=["."])
        assert (stream(decoder, pieces), decoder.completion_tokens) == (expected, tokens)


def test_any_cutting_of_the_ids_gives_the_same_answer(model: Model, rng: random.Random) -> None:
    text = "caf\u00e9 \U0001f468\u200d\U0001f469 one two\n\n\u4f60\u597d three, User: four"
    ids = [*model.encode(text), model.language.eos_token_ids[0]]
    stops: list[Sequence[str]] = [[], ["User:"], ["\u597d"], ["two\n\n\u4f60"], ["none such", "four"], [" "], ["four!"]]
    for stop in stops:
        for min_tokens in (0, 5, 100):
            params = SamplingParams(max_tokens=1_000, min_tokens=min_tokens)
            expected = None
            for _ in range(30):
                decoder = answer_decoder(model, params, stop)
                seen = (stream(decoder, cut(ids, rng)), decoder.completion_tokens, decoder.stopped)
                expected = expected or seen
                assert seen == expected


def test_a_token_shows_the_same_alone_and_among_others(byte_level: Model) -> None:
    """A single token of whole characters is read by a shorter way, except inside a character or stop string."""
    befores = [byte_level.ids_of_bytes(data) for data in (b"", b"\xe4", b"\xe4\xbd", b"\xff", b"ST", b"STO", b"x\xf0")]
    after = byte_level.ids_of_bytes(b"OP.")
    params = replace(UNLIMITED, stop_token_ids=tuple(byte_level.encode("<tool_call>")))
    for token_id in range(byte_level.tokenizer.get_vocab_size()):
        for before in befores:
            ids = [*before, token_id, token_id, *after]
            seen = []
            for pieces in (one_by_one(ids), [ids]):
                decoder = answer_decoder(byte_level, params, stop=["STOP", "\ufffd."])
                seen.append((stream(decoder, pieces), decoder.completion_tokens, decoder.stopped))
            assert seen[0] == seen[1], (token_id, before)


def test_nothing_fed_shows_nothing(model: Model) -> None:
    decoder = answer_decoder(model, stop=["x"])
    assert (decoder.feed([]), decoder.flush(), decoder.completion_tokens, decoder.stopped) == ("", "", 0, False)


def test_empty_stop_string_is_refused(byte_level: Model) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        answer_decoder(byte_level, stop=["ok", ""])
    assert refusal.value.param == "stop"
