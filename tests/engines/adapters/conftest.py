"""The engine that the adapters are held to."""

import pytest

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine
from engines.reference.guide import Grammars
from tests.engines.wires.servers import WEIGHTS


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine(load_checkpoint(WEIGHTS), max_batch=1, grammars=Grammars(WEIGHTS, 1024))
