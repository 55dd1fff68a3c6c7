"""Every kind of engine, whatever it is: its settings and its backends agree, and each of its parts is there."""

import pytest

from gateway.engine_kinds import ENGINE_KINDS


@pytest.mark.parametrize("name", ENGINE_KINDS)
def test_the_lanes_of_a_kind_are_those_of_its_settings(name: str) -> None:
    kind = ENGINE_KINDS[name]
    assert kind.settings.kind == name
    assert (kind.open_tokens is not None) == kind.settings.takes_tokens
    assert (kind.open_relay is not None) == kind.settings.speaks_openai
    assert kind.settings.takes_tokens or kind.settings.speaks_openai
