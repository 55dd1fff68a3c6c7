"""What is known of the engines at the start and at the end of a run."""

import pytest

from loadtest.client.errors import Untrusted
from loadtest.results.system import Engines, confirm_same, read_engines

TRITON = {"engine": "triton", "version": "2.71.0", "max_batch_size": 64}
ENGINES = {"triton": TRITON, "vllm": {"engine": None, "version": None}, "third": {"engine": "vllm"}}


def test_only_the_two_backends_and_only_what_is_known() -> None:
    assert read_engines({"models": {"toy": ENGINES}}, "toy", ("triton", "vllm")) == {"triton": TRITON}


@pytest.mark.parametrize(
    "version", [{"version": "1.2.3"}, {"models": None}, {"models": {"toy": None}}, {"models": {"toy": {"triton": []}}}]
)
def test_a_gateway_that_reports_nothing_has_no_fingerprint(version: dict[str, object]) -> None:
    assert read_engines(version, "toy", ("triton", "vllm")) == {}


@pytest.mark.parametrize(
    ("start", "end", "known"),
    [
        ({}, {}, {}),
        ({"a": {"version": "1"}}, {}, {"a": {"version": "1"}}),
        ({}, {"a": {"version": "1"}}, {"a": {"version": "1"}}),
        ({"a": {"version": "1"}}, {"a": {"engine": "x", "version": "1"}}, {"a": {"engine": "x", "version": "1"}}),
    ],
)
def test_what_is_learnt_later_is_added(start: Engines, end: Engines, known: Engines) -> None:
    assert confirm_same(start, end) == known


def test_every_change_is_named() -> None:
    start: Engines = {"a": {"version": "1", "max": 4}, "b": {"version": "1"}}
    with pytest.raises(Untrusted, match=r": a version was 1, is 2; b version was 1, is 3$"):
        confirm_same(start, {"a": {"version": "2", "max": 4}, "b": {"version": "3"}})
