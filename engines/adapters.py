"""The seam of our Triton Python model: what it asks of an engine, and the engines it can run.

In: decoded requests of the tensor contract. Out: tokens to a Receiver. Knows no Triton; needs little more than NumPy,
for it is imported inside Triton's Python backend (requirements/triton.in).
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine
from engines.reference.guide import Grammars
from engines.reference.runner import Receiver, Runner, RunnerStats
from engines.reference.trtllm_contract import Limits, TokenRequest

logger = logging.getLogger(__name__)


class TokenEngine(Protocol):
    """Token ids in, token ids out. Receivers are called from a thread of the engine's, one call at a time."""

    @property
    def limits(self) -> Limits: ...

    @property
    def stats(self) -> RunnerStats: ...

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        """Begin a generation; the function returned cancels it: idempotent, and harmless after the end."""
        ...

    def close(self) -> None: ...


class ReferenceAdapter:
    """The NumPy engine of this project. Parameters: model_dir, max_batch, guided_decoding_backend (any or none)."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        directory = Path(parameters["model_dir"])
        checkpoint = load_checkpoint(directory)
        follows_guides = bool(parameters.get("guided_decoding_backend"))
        grammars = Grammars(directory, checkpoint.config.vocab_size) if follows_guides else None
        engine = Engine(checkpoint, max_batch=int(parameters.get("max_batch", "128")), grammars=grammars)
        self.limits = Limits(engine.vocab_size, engine.context_length, grammars)
        self._ids = count(1)
        self._deliveries: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        # A thread of its own delivers: a response costs Triton's stub a round trip, which no step should wait for.
        self._thread = threading.Thread(target=self._deliver, name="deliveries", daemon=True)
        self._runner = Runner(engine, self._post)
        self._thread.start()
        self._runner.start()

    @property
    def stats(self) -> RunnerStats:
        return self._runner.stats

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        runner_id = str(next(self._ids))
        self._runner.submit(runner_id, request.prompt, request.params, receiver)
        return lambda: self._runner.cancel(runner_id)

    def close(self) -> None:
        self._runner.close()
        self._deliveries.put(None)
        self._thread.join()

    def _post(self, function: Callable[..., None], *arguments: Any) -> None:  # any arguments, handed on
        self._deliveries.put((function, arguments))

    def _deliver(self) -> None:
        while (delivery := self._deliveries.get()) is not None:
            function, arguments = delivery
            try:
                function(*arguments)
            # Edge of the thread: one delivery that goes wrong must not end all others.
            except Exception:
                logger.exception("a delivery failed")


def tensorrt_llm(parameters: Mapping[str, str]) -> TokenEngine:
    """The place of `tensorrt_llm.LLM`: `generate_async(prompt_token_ids, sampling_params, streaming=True)` per request,
    whose `token_ids_diff` feed the receiver, and `abort()` as its cancel function.
    """
    raise NotImplementedError(
        f"engine 'tensorrt_llm' for {parameters['model_dir']} is not implemented yet; use engine 'reference'"
    )


ADAPTERS: Mapping[str, Callable[[Mapping[str, str]], TokenEngine]] = {
    "reference": ReferenceAdapter,
    "tensorrt_llm": tensorrt_llm,
}
