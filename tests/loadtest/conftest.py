from pathlib import Path

import pytest

from loadtest.lab.bench.load_client import SOURCE
from loadtest.mock_engine.build import build, find_compiler
from loadtest.mock_engine.process import CannotMeasure


@pytest.fixture(scope="package")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of programs built in C. Tests that need one are skipped where there is no compiler."""
    try:
        find_compiler()
    except CannotMeasure as exc:
        pytest.skip(str(exc))
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="package")
def client(cache: Path) -> Path:
    return build(SOURCE, cache)
