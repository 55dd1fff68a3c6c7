"""The embedded stack's own configuration, to be made wrong in one place at a time."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import pytest
import yaml

from deploy.launch import Launched
from gateway.configuration import parse_settings
from gateway.doctor import Options, Report, examine
from gateway.engine_kinds import ENGINE_KINDS

Json: TypeAlias = Any  # a configuration, changed key by key
Changes: TypeAlias = Mapping[str, Mapping[str, object]]  # by backend, keys that differ

QUIET = Options(generates=False)


class Clinic:
    """Examines the embedded stack after a change of its crossover.yaml; no gateway of ours has the port then."""

    def __init__(self, stack: Launched) -> None:
        self._stack = stack
        self.triton = str(stack.stack.backends["triton"]["url"])
        self.metrics = str(stack.stack.backends["triton"]["metrics_url"])
        self.vllm = str(stack.stack.backends["vllm"]["url"])

    def configuration(self, changes: Changes | None = None, **settings: object) -> Json:
        document = yaml.safe_load((self._stack.run_dir / "crossover.yaml").read_text())
        for name, keys in (changes or {}).items():
            document["models"][0]["backends"][name] |= keys
        return document | settings

    def only(self, name: str, **keys: object) -> list[Json]:
        """The model with one of its backends, as the configuration has it but for `keys`."""
        (model,) = self.configuration({name: keys})["models"]
        return [{"id": model["id"], "tokenizer": model["tokenizer"], "backends": {name: model["backends"][name]}}]

    async def examine(self, changes: Changes | None = None, options: Options = QUIET, **settings: object) -> Report:
        """Without a generation, which takes a second, unless the options ask for one."""
        document = self.configuration(changes, **settings)
        return await examine(parse_settings(document, environ={}), options, ENGINE_KINDS, lambda _: None)


@pytest.fixture
def clinic(embedded_stack: Launched) -> Clinic:
    return Clinic(embedded_stack)
