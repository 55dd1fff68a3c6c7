"""The stop matcher finds what a search of the whole text finds, wherever the text is cut."""

import random
import time
from collections.abc import Sequence

import pytest

from gateway.language.stop_strings import StopMatcher


def shown(stop: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop)
    text = "".join(matcher.feed(piece) for piece in pieces) + matcher.flush()
    return text, matcher.matched


def first_match(stop: Sequence[str], text: str) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        for string in stop:
            if text[:end].endswith(string):
                return text[: end - len(string)], string
    return text, None


def longest_promise(stop: Sequence[str], text: str) -> int:
    """How many characters at the end of `text` may still become a stop string."""
    return max(
        length for string in stop for length in range(len(string)) if not length or text.endswith(string[:length])
    )


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (["END"], "some text END more", "some text "),
        (["END"], "no such thing", "no such thing"),
        (["END"], "almost EN", "almost EN"),
        (["END"], "END", ""),
        (["aab"], "aaab", "a"),
        (["aab"], "aaaaaaaab!", "aaaaaa"),
        (["abab"], "abaababx", "aba"),
        (["ab", "b"], "xab", "x"),
        (["b", "ab"], "xab", "xa"),
        (["abcd", "bc"], "xabcd", "xa"),
        (["abcd", "bd"], "abcabd", "abca"),
        (["\n\n", "\nUser:"], "hi\nUser\n\nUser:", "hi\nUser"),
        (["\U0001f6d1"], "go \U0001f6d1 on", "go "),
        (["."], "one. two.", "one"),
        ([], "nothing to look for", "nothing to look for"),
    ],
)
def test_text_is_cut_before_the_stop_string_wherever_it_is_split(stop: list[str], text: str, expected: str) -> None:
    assert first_match(stop, text)[0] == expected
    for split in range(len(text) + 1):
        assert shown(stop, [text[:split], text[split:]])[0] == expected
    assert shown(stop, list(text))[0] == expected


def test_a_kept_match_ends_the_text_wherever_it_is_split(rng: random.Random) -> None:
    for _ in range(1_000):
        stop = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        text = "".join(rng.choices("abc", k=15))
        before, match = first_match(stop, text)
        for split in range(len(text) + 1):
            matcher = StopMatcher(stop, keeps_match=True)
            seen = matcher.feed(text[:split]) + matcher.feed(text[split:]) + matcher.flush()
            assert (seen, matcher.matched) == (before + (match or ""), match)


def test_any_cutting_of_any_text_gives_the_first_match(rng: random.Random) -> None:
    for _ in range(3_000):
        stop = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))]
        text = "".join(rng.choices("abc", weights=[5, 5, 1], k=rng.randint(0, 25)))
        pieces, start = [], 0
        while start < len(text):
            pieces.append(text[start : (start := start + rng.randint(0, 4))])
        assert shown(stop, pieces) == first_match(stop, text)


def test_no_more_is_held_back_than_may_become_a_stop_string(rng: random.Random) -> None:
    for _ in range(1_000):
        stop = ["".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(rng.randint(1, 3))]
        matcher, text, seen = StopMatcher(stop), "", ""
        for character in rng.choices("abc", k=20):
            text += character
            seen += matcher.feed(character)
            if matcher.matched is not None:
                break
            assert seen == text[: len(text) - longest_promise(stop, text)]


def test_nothing_is_held_where_no_stop_string_begins(rng: random.Random) -> None:
    """So a caller need not feed text without any of `starts` while nothing is held."""
    for _ in range(1_000):
        stop = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(0, 3))]
        matcher, text = StopMatcher(stop), ""
        for character in rng.choices("abc", k=20):
            text += character
            if matcher.held or not matcher.starts.isdisjoint(character):
                matcher.feed(character)
            assert matcher.matched == first_match(stop, text)[1]
            if matcher.matched is not None:
                break
            assert matcher.held == (longest_promise(stop, text) if stop else 0)


@pytest.mark.parametrize(
    ("stop", "passed", "then"),
    [
        (["ab", "bcd"], {"xab": "xa", "ca": "bc"}, "b!"),  # "b" may still become "bcd"
        (["aba"], {"xaba": "xab"}, "ba"),  # the next match may begin in the one before
        (["abc"], {"xab": "x"}, "c"),  # a match may begin in passed text
    ],
)
def test_passed_matches_are_shown_and_hold_back_only_what_may_begin_the_next(
    stop: list[str], passed: dict[str, str], then: str
) -> None:
    matcher = StopMatcher(stop)
    for text, shown_of_it in passed.items():
        assert matcher.feed(text, may_match=False) == shown_of_it
    assert matcher.feed(then) == ""
    assert matcher.matched == stop[0]


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["b", "cd"])
    assert matcher.feed("abc") == "a"
    assert (matcher.feed("more"), matcher.flush()) == ("", "")


@pytest.mark.parametrize(
    ("stop", "unit"),
    [
        (["a" * 2_000 + "b"], "a"),
        (["ab" * 1_000 + "c", "b" + "ab" * 1_000 + "d"], "ab"),
        (["a" * 2_000 + "b"], "a" * 50),
    ],
)
def test_time_is_linear_in_the_text_for_stop_strings_that_almost_match(stop: list[str], unit: str) -> None:
    def seconds(pieces: int) -> float:
        matcher = StopMatcher(stop)
        start = time.process_time()
        for _ in range(pieces):
            matcher.feed(unit)
        return time.process_time() - start

    short, long = (min(seconds(pieces) for _ in range(3)) for pieces in (1_000, 16_000))
    assert long < 16 * 5 * short


def test_many_choices_cost_little_more_to_prepare_than_one() -> None:
    def seconds(letter: str, choices: int) -> float:
        stop = [letter * 4_000 + end for end in "wxyz"]
        start = time.process_time()
        for _ in range(choices):
            StopMatcher(stop)
        return time.process_time() - start

    one, many = (min(seconds(letter, choices) for letter in letters) for choices, letters in ((1, "abc"), (128, "def")))
    assert many < 10 * one
