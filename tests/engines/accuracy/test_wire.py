"""Requests and responses as values; and prices."""

from typing import Any

import pytest

from engines.accuracy.cost import Cost, Saving, count_cost, count_saving, parse_price
from engines.accuracy.divergence import ScoredToken
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import FreeText
from engines.accuracy.wire import (
    Abilities,
    cut_end,
    make_chat_request,
    make_completion_request,
    make_score_request,
    read_generated,
    read_probe,
    read_scores,
)

ALL = Abilities(scores=True, names_ids=True, ids=True)


def logprobs(*tokens: str) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "token_logprobs": [None, *[-1.0] * (len(tokens) - 1)],
        "top_logprobs": [None, *[{"x": -1.0}] * (len(tokens) - 1)],
    }


def page(**choice: object) -> dict[str, Any]:
    return {"choices": [choice], "usage": {"completion_tokens": 3}}


def rows(*texts: str) -> list[ScoredToken]:
    return [ScoredToken(text, None if place == 0 else -float(place), {}) for place, text in enumerate(texts)]


def test_nothing_is_asked_of_an_endpoint_that_it_does_not_do() -> None:
    plain = make_completion_request("m", "Hi", FreeText(("x",), 9), 5, Abilities())
    assert plain == {"model": "m", "prompt": "Hi", "max_tokens": 9, "temperature": 0}
    more = make_completion_request("m", "Hi", FreeText(("x",), 9, ("\n",)), 5, ALL)
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    assert more == plain | {"stop": ["\n"], "logprobs": 5} | ids
    scored = make_score_request("m", (1, 2), 5, Abilities(scores=True))
    assert scored == plain | {"prompt": [1, 2], "max_tokens": 1, "echo": True, "logprobs": 5}
    hi = {"role": "user", "content": "Hi"}
    chat = make_chat_request("m", (hi,), FreeText(("x",), 9), Abilities(ids=True))
    del plain["prompt"]
    assert chat == plain | {"return_token_ids": True, "messages": [hi]}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"text": "x", "token_ids": [1], "logprobs": logprobs("token_id:5", "token_id:6")}, ALL),
        ({"text": "x", "token_ids": [1], "logprobs": logprobs("Hello", "x")}, Abilities(scores=True, ids=True)),
        ({"text": "x", "logprobs": logprobs("x")}, Abilities(refusal="no")),
        ({"text": "x", "token_ids": [1], "logprobs": None}, Abilities(ids=True, refusal="no")),
        ({"text": "x"}, Abilities(refusal="no")),
    ],
)
def test_an_endpoint_does_what_its_answer_shows_and_not_what_it_took(choice: Any, expected: Abilities) -> None:
    assert read_probe(page(**choice), "no") == expected


def test_a_completion_and_a_chat_are_read_alike() -> None:
    completion = read_generated(
        page(text="a b", finish_reason="stop", token_ids=[7, 8, 2], prompt_token_ids=[5], logprobs=logprobs("a", "b"))
    )
    assert (completion.text, completion.prompt_ids, completion.token_ids) == ("a b", (5,), (7, 8, 2))
    assert [row.text for row in completion.tokens] == ["a", "b"]
    chat = read_generated(
        page(message={"content": "a b"}, finish_reason="stop", token_ids=[7, 8, 2]) | {"prompt_token_ids": [5]}
    )
    assert (chat.text, chat.prompt_ids, chat.token_ids, chat.completion_tokens) == ("a b", (5,), (7, 8, 2), 3)
    assert read_generated(page(message={"content": None})).text == ""


def test_log_probabilities_that_are_missing_are_no_measurement() -> None:
    with pytest.raises(CannotMeasure, match="without the log-probabilities"):
        read_scores(page(text="x", logprobs=None))


@pytest.mark.parametrize(
    ("texts", "text", "expected"),
    [
        (("The", " sky", " is", " blue"), " blue", [" blue"]),
        (("The", " sky", " is", " bl", "ue"), " is blue", [" is", " bl", "ue"]),
        (("The sk", "y i", "s blue"), " is blue", ["y i", "s blue"]),
        (("Say", "", "", "\N{GRINNING FACE}"), "\N{GRINNING FACE}", ["", "", "\N{GRINNING FACE}"]),
    ],
)
def test_the_tokens_of_a_continuation_are_those_that_hold_its_characters(
    texts: tuple[str, ...], text: str, expected: list[str]
) -> None:
    assert [row.text for row in cut_end(rows(*texts), text)] == expected


@pytest.mark.parametrize(("texts", "text"), [(("The", " SKY"), " sky"), (("ab",), "b"), (("a", "b"), "aab")])
def test_tokens_that_spell_another_text_or_have_no_score_are_no_measurement(texts: tuple[str, ...], text: str) -> None:
    with pytest.raises(CannotMeasure, match="spell"):
        cut_end(rows(*texts), text)


@pytest.mark.parametrize(
    ("text", "price"),
    [("1.30", 1.3), ("0", 0.0), ("2x2.50@18000", 2 * 2.5 / 3600 / 18000 * 1e6), ("1x3@1", 3e6 / 3600)],
)
def test_a_price_is_money_per_million_tokens(text: str, price: float) -> None:
    assert parse_price(text) == pytest.approx(price)


@pytest.mark.parametrize("text", ["", "x", "-1", "2x3", "3@100", "2x3@0", "1,5"])
def test_a_price_in_no_known_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="tok/s"):
        parse_price(text)


def test_costs_are_per_right_answer_and_per_point_lost() -> None:
    assert count_cost(2.0, 500_000, 250) == Cost(2.0, 4.0)
    assert count_cost(2.0, 500, 0) == Cost(2.0, None)
    assert count_saving(2.0, 1.5, 0.25, 1.0) == Saving(0.5, 2.0, 0.5)
    assert count_saving(2.0, 1.5, 0.0, 2.0) == Saving(0.5, None, 0.25)
