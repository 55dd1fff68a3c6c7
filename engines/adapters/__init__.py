"""The engines that our Triton Python model can run, by the value of its parameter `engine`.

In: the parameters of config.pbtxt. Out: a TokenEngine. An engine's own packages are imported only when it is chosen.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from engines.adapters.token_engine import TokenEngine


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
