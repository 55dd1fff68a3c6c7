"""The common part of the adapters of vLLM and TensorRT-LLM: answers as coroutines on an event loop, and guides.

In: decoded requests. Out: tokens to a Receiver. Knows neither engine.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeAlias

from engines.adapters.deliveries import Deliveries
from engines.adapters.engine_loop import Engine, EngineLoop
from engines.adapters.outputs import Progress, finish_reason
from engines.reference.guide import Guide
from engines.reference.runner import Receiver
from engines.reference.scores import Score
from engines.reference.trtllm_contract import TokenRequest

# New token ids of one answer, their scores where they are asked for, and the engine's finish reason at the end.
Delta: TypeAlias = tuple[Sequence[int], Sequence[Score] | None, str | None]


class LoopAdapter(ABC, Generic[Engine]):
    """A TokenEngine without `limits`, `load` and `_generate`, which subclasses add."""

    def __init__(self, make: Callable[[], Engine], end: Callable[[Engine], None]) -> None:
        self._loop = EngineLoop(make, end)
        self._engine = self._loop.engine
        self._deliveries = Deliveries()

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        return self._loop.begin(lambda: self._answer(request, receiver))

    def close(self) -> None:
        self._loop.close()
        self._deliveries.close()

    @abstractmethod
    def _generate(self, request: TokenRequest) -> AsyncGenerator[Delta, None]: ...

    def _explain(self, error: Exception) -> str:
        """The message for the client."""
        return str(error)

    async def _answer(self, request: TokenRequest, receiver: Receiver) -> None:
        params = request.params
        progress = Progress((*params.stop_ids, *(() if params.ignore_eos else params.end_ids)))
        try:
            async with aclosing(self._generate(request)) as deltas:
                async for token_ids, scores, reason in deltas:
                    outputs = progress.advance(token_ids, scores, finish_reason(reason))
                    self._deliveries.tokens(receiver, outputs)
        # Edge of the request: its failure must not end other requests.
        except Exception as exc:  # noqa: BLE001 - sent to the client
            self._deliveries.failed(receiver, self._explain(exc))


def guide_fields(guide: Guide) -> dict[str, Any]:  # as the engines type them
    """The keyword argument for a guide; vLLM and TensorRT-LLM give it the same names."""
    match guide.kind:
        case "json":
            return {"json_object": True}
        case "json_schema":
            return {"json": guide.text}
        case "regex":
            return {"regex": guide.text}
        case "ebnf_grammar":
            return {"grammar": guide.text}
        case "choice":
            return {"choice": json.loads(guide.text)}


def accept_any_guide(guide: Guide) -> None:
    """Accepts a guide, for engines that check it themselves when they receive it."""
