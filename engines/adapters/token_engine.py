"""The seam of our Triton Python model: what it asks of an engine.

In: decoded requests of the tensor contract. Out: tokens to a Receiver. Knows no Triton and no engine.
"""

from collections.abc import Callable
from typing import Protocol

from engines.reference.runner import Receiver
from engines.reference.trtllm_contract import Limits, TokenRequest
from engines.reference.trtllm_metrics import EngineLoad


class TokenEngine(Protocol):
    """Token ids in, token ids out. Receivers are called from a thread of the engine's, one call at a time.

    A receiver gets each token once, the last one with the answer's finish reason; an answer that its end token ended
    has that token last. An answer that cannot go on ends by `failed` instead, with what the client shall read.
    """

    @property
    def limits(self) -> Limits: ...

    @property
    def load(self) -> EngineLoad: ...

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        """Begin a generation; the function returned cancels it: idempotent, and harmless after the end."""
        ...

    def close(self) -> None:
        """Ends the engine's threads and processes; receivers hear nothing more of what has not been delivered."""
        ...
