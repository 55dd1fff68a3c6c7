"""The small models, each loaded once, and the random choices of the property tests, seeded."""

import random

import pytest

from tests.language.small_models import REFERENCE_WEIGHTS, Model, build_byte_level, build_sentencepiece, load_model


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_byte_level(tmp_path_factory.mktemp("byte_level"))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_sentencepiece(tmp_path_factory.mktemp("sentencepiece"))


@pytest.fixture(scope="session")
def reference() -> Model:
    return load_model("reference", REFERENCE_WEIGHTS)


@pytest.fixture(params=["byte_level", "sentencepiece", "reference"])
def model(request: pytest.FixtureRequest) -> Model:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Model)
    return found


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20_261_121)
