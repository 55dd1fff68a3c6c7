"""What tokens cost, by hand; no figure where the GPUs or the price are not known."""

import pytest

from loadtest.decide.cost import EVERY, Cost, Price, parse_gpus, show_gpus

PAIR = Cost(gpus={"triton": 2, "vllm": 1}, price=Price(3.6, "EUR"))


@pytest.mark.parametrize(
    ("cost", "backend", "rate", "tokens", "money"),
    [
        (PAIR, "vllm", 1000.0, 3.6e6, 1.0),  # 1,000 tokens a second are 3.6 million an hour
        (PAIR, "triton", 1000.0, 1.8e6, 2.0),
        (PAIR, "vllm", 0.0, 0.0, None),
        (Cost(), "triton", 1.0, None, None),
        (Cost(price=Price(2.0)), "triton", 1.0, None, None),
        (Cost(gpus={"vllm": 2}, price=Price(2.0)), "triton", 1.0, None, None),
        (Cost(gpus={"triton": 1}), "triton", 1.0, 3600.0, None),
        (Cost(gpus={EVERY: 4, "triton": 1}, price=Price(3.6)), "triton", 1.0, 3600.0, 1000.0),
    ],
)
def test_tokens_and_money(cost: Cost, backend: str, rate: float, tokens: float | None, money: float | None) -> None:
    assert cost.find_tokens_per_gpu_hour(backend, rate) == tokens
    assert cost.find_per_million(backend, rate) == (pytest.approx(money) if money else None)


@pytest.mark.parametrize(
    ("text", "price"),
    [("2.5", Price(2.5)), ("2.50 EUR", Price(2.5, "EUR")), (" 3$", Price(3.0, "$")), (".5€", Price(0.5, "€"))],
)
def test_a_price_has_a_currency_or_none(text: str, price: Price) -> None:
    assert Price.parse(text) == price
    assert Price.parse(str(price)) == price


@pytest.mark.parametrize("text", ["", "EUR", "0", "-1", "1e400", "nan", "2,5", "2 EUR an hour", "2 a|b"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an amount above 0"):
        Price.parse(text)


@pytest.mark.parametrize(("text", "gpus"), [("2", {EVERY: 2}), ("triton=2,vllm=4", {"triton": 2, "vllm": 4})])
def test_gpus_are_given_for_all_or_each(text: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(text) == gpus
    assert show_gpus(gpus) == text


@pytest.mark.parametrize("text", ["", "0", "triton", "triton=", "triton=-1", "triton=1,triton=2", "1.5"])
def test_what_is_no_number_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers above 0"):
        parse_gpus(text)


def test_a_price_is_for_a_number_of_gpus_which_may_be_declared() -> None:
    price = Cost(price=Price(1.0))
    with pytest.raises(ValueError, match="--gpu-price needs the number of GPUs: --gpu-count"):
        price.check()
    known = price.with_declared({"triton": 2})
    known.check()
    assert known == Cost(gpus={"triton": 2}, price=Price(1.0))
    assert Cost(gpus={EVERY: 2}).with_declared({"triton": 4}).gpus == {EVERY: 2}


@pytest.mark.parametrize(
    ("cost", "contradiction"),
    [
        (Cost(gpus={EVERY: 2}), None),
        (Cost(gpus={"vllm": 4}), None),
        (Cost(gpus={"sglang": 4}), "sglang was given, and the backends are triton and vllm"),
        (Cost(gpus={EVERY: 4}), "triton has 4, and --hardware declares 2"),
    ],
)
def test_gpus_that_contradict_the_declaration_are_named(cost: Cost, contradiction: str | None) -> None:
    assert cost.find_contradiction({"triton": 2}, ("triton", "vllm")) == contradiction
