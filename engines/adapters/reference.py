"""The reference engine as a TokenEngine for our Triton Python model.

In: parameters, decoded requests. Out: tokens to a Receiver. It is imported inside Triton's Python backend, so it needs
little more than NumPy (requirements/triton.in).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from engines.adapters.deliveries import Deliveries
from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine, EngineLoad, TokenOutput
from engines.reference.guide import Grammars
from engines.reference.runner import Receiver, Runner, post_inline
from engines.reference.trtllm_contract import Limits, TokenRequest


class ReferenceAdapter:
    """The NumPy engine of this project. Parameters: model_dir, max_batch, guided_decoding_backend (any or none)."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        directory = Path(parameters["model_dir"])
        checkpoint = load_checkpoint(directory)
        follows_guides = bool(parameters.get("guided_decoding_backend"))
        grammars = Grammars(directory, checkpoint.config.vocab_size) if follows_guides else None
        engine = Engine(checkpoint, max_batch=int(parameters.get("max_batch", "128")), grammars=grammars)
        self.limits = Limits(engine.vocab_size, engine.context_length, grammars.walk if grammars else None)
        self._ids = count(1)
        self._deliveries = Deliveries()
        self._runner = Runner(engine, post_inline)
        self._runner.start()

    @property
    def load(self) -> EngineLoad:
        return self._runner.stats

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        runner_id = str(next(self._ids))
        self._runner.submit(runner_id, request.prompt, request.params, Posted(receiver, self._deliveries))
        return lambda: self._runner.cancel(runner_id)

    def close(self) -> None:
        self._runner.close()
        self._deliveries.close()


class Posted:
    """Passes an answer from the engine's thread on to the delivering one."""

    def __init__(self, receiver: Receiver, deliveries: Deliveries) -> None:
        self._receiver = receiver
        self._deliveries = deliveries

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self._deliveries.tokens(self._receiver, outputs)

    def failed(self, message: str) -> None:
        self._deliveries.failed(self._receiver, message)
