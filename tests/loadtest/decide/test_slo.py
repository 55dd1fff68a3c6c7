import pytest

from loadtest.decide.slo import Slo


@pytest.mark.parametrize(
    ("slo", "is_kept"),
    [
        (Slo(), True),
        (Slo(ttft_s=0.51), True),
        (Slo(ttft_s=0.49), False),
        (Slo(tpot_s=0.101), True),
        (Slo(tpot_s=0.099), False),
        (Slo(e2e_s=0.91), True),
        (Slo(e2e_s=0.89), False),
        (Slo(ttft_s=0.51, tpot_s=0.099), False),
    ],
)
def test_every_limit_has_to_be_kept(slo: Slo, is_kept: bool) -> None:
    assert slo.is_kept(ttft_s=0.5, tpot_s=0.1, e2e_s=0.9) is is_kept


def test_limits_are_read_and_shown() -> None:
    assert Slo.parse("ttft=0.5, tpot=0.03") == Slo(ttft_s=0.5, tpot_s=0.03)
    assert str(Slo.parse("e2e=2")) == "e2e 2 s"


@pytest.mark.parametrize(
    ("text", "message"),
    [("itl=1", "limits are ttft"), ("ttft=fast", "a number of seconds"), ("ttft=0", "ttft: a limit")],
)
def test_limits_that_are_none_name_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Slo.parse(text)
