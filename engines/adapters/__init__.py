"""The engines that our Triton Python model can run, by the value of its parameter `engine`.

In: the parameters of config.pbtxt. Out: a TokenEngine. An engine's own packages are imported only when it is chosen.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Protocol

from engines.reference.engine import EngineLoad
from engines.reference.runner import Receiver
from engines.reference.trtllm_contract import Limits, TokenRequest


class TokenEngine(Protocol):
    """Token ids in, token ids out. Receivers are called from a thread of the engine's, one call at a time.

    A receiver gets each token once, the last one with the answer's finish reason; the end token is the last one where
    it ended the answer. An answer that cannot go on ends by `failed`, with the message for the client.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def load(self) -> EngineLoad: ...

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        """Begin a generation. The returned function cancels it: idempotent, and harmless after the end."""
        ...

    def close(self) -> None:
        """End the engine's threads and processes. Receivers get nothing that has not been delivered yet."""
        ...


class MissingEngine(Exception):
    """The engine's packages are not installed where the model runs."""


def _make(module: str, name: str, parameters: Mapping[str, str]) -> TokenEngine:
    try:
        adapter: Callable[[Mapping[str, str]], TokenEngine] = getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        raise MissingEngine(f"{exc}: the engine has to be installed for the Python that runs this model") from exc
    return adapter(parameters)


ADAPTERS: Mapping[str, Callable[[Mapping[str, str]], TokenEngine]] = {
    "reference": partial(_make, "engines.adapters.reference", "ReferenceAdapter"),
    "vllm": partial(_make, "engines.adapters.vllm", "VllmAdapter"),
    "tensorrt_llm": partial(_make, "engines.adapters.tensorrt_llm", "TensorrtLlmAdapter"),
}
