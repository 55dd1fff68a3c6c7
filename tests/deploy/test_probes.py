"""The gateway's readiness as seen from outside, whoever answers on its port."""

import io

import pytest

from deploy.ports import LOCALHOST, find_free
from deploy.probes import sees_every_backend


@pytest.mark.parametrize(
    ("body", "is_ready"),
    [
        ('{"models": {"m": {"a": true, "b": true}}}', True),
        ('{"models": {"m": {"a": true, "b": false}}}', False),
        ("{}", False),
        ("[]", False),
        ("null", False),
        ('{"models": null}', False),
        ('{"models": {"m": 1}}', False),
        ("welcome", False),
    ],
)
def test_gateway_is_ready_only_by_its_own_answer(monkeypatch: pytest.MonkeyPatch, body: str, is_ready: bool) -> None:
    monkeypatch.setattr("engines.process.open_direct", lambda url, timeout: io.StringIO(body))
    assert sees_every_backend("http://gateway") is is_ready


def test_gateway_that_nobody_answers_for_is_not_ready() -> None:
    [port] = find_free(1)
    assert not sees_every_backend(f"http://{LOCALHOST}:{port}")
