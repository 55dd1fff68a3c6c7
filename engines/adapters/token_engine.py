"""What our Triton Python model needs of an engine, as a Protocol.

In: decoded requests of the tensor contract. Out: tokens to a Receiver. Knows no Triton and no engine.
"""

from collections.abc import Callable
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
