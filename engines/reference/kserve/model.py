"""The one model of this server: its name, its limits, its requests in flight by Triton request id.

In: decoded requests. Out: calls to the runner. Knows no stream.
"""

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from engines.reference.kserve.checks import Refusal
from engines.reference.kserve.messages import MODEL_VERSION
from engines.reference.launch import Runs
from engines.reference.runner import Receiver
from engines.reference.trtllm_contract import STOP_WITHOUT_ID, ContractError, Limits, TokenRequest


class Stoppable(Receiver, Protocol):
    def stop(self) -> None: ...


@dataclass
class Counts:
    """Inferences since the start, as Triton counts them."""

    success: int = 0
    failure: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0)
    )


class ServedModel:
    def __init__(self, name: str, runner: Runs, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self.runner = runner
        self.counts = Counts()
        self._ids = count(1)
        # By Triton request id; of equal ids the last one, as in TensorRT-LLM.
        self._calls: dict[str, Stoppable] = {}

    def check_name(self, name: str, version: str) -> None:
        if version and not re.fullmatch(r"\d+", version):
            raise Refusal(
                f"failed to get model version from specified version string '{version}' (details: stol), version "
                "should be an integral value > 0"
            )
        if name != self.name:
            raise Refusal(f"Request for unknown model: '{name}' is not found")
        if version not in {"", MODEL_VERSION}:
            raise Refusal(f"Request for unknown model: '{name}' version {version} is not found")

    def start(self, triton_id: str, call: Stoppable, request: TokenRequest) -> str:
        """Returns the id for `end`."""
        runner_id = str(next(self._ids))
        self._calls[triton_id] = call
        self.runner.submit(runner_id, request.prompt, request.params, call)
        return runner_id

    def stop(self, triton_id: str) -> None:
        if not triton_id:
            raise ContractError(STOP_WITHOUT_ID)
        call = self._calls.get(triton_id)
        if call is not None:
            call.stop()

    def end(self, triton_id: str, runner_id: str, call: Stoppable) -> None:
        if self._calls.get(triton_id) is call:
            del self._calls[triton_id]
        self.runner.cancel(runner_id)
