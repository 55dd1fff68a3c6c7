"""Two sets of identities, and what is said to differ."""

import pytest

from gateway.evidence import Change, Identity
from gateway.evidence.fingerprint import find_changes

RECORDED: dict[str, Identity] = {
    "triton": {"engine": "triton", "version": "2.71.0", "max_batch_size": 64},
    "vllm": {"engine": "vllm", "version": "0.24.0", "max_model_len": 8192},
}


@pytest.mark.parametrize(
    ("live", "changes"),
    [
        (RECORDED, ()),
        ({}, ()),
        ({"vllm": {}}, ()),
        (RECORDED | {"third": {"version": "1"}}, ()),
        (RECORDED | {"vllm": {**RECORDED["vllm"], "root": "/new/field"}}, ()),
        (RECORDED | {"vllm": {"version": "0.25.0"}}, (Change("vllm", "version", "0.24.0", "0.25.0"),)),
        (
            {"triton": {"version": "2.72.0"}, "vllm": {"engine": "vllm", "max_model_len": 4096}},
            (Change("triton", "version", "2.71.0", "2.72.0"), Change("vllm", "max_model_len", 8192, 4096)),
        ),
    ],
)
def test_only_what_both_know_and_differs_is_a_change(live: dict[str, Identity], changes: tuple[Change, ...]) -> None:
    assert find_changes(RECORDED, live) == changes


def test_a_change_names_backend_field_old_and_new() -> None:
    (change,) = find_changes(RECORDED, {"vllm": {"version": "0.25.0"}})
    assert str(change) == "vllm version was 0.24.0, is 0.25.0"
