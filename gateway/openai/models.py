"""GET /v1/models and /v1/models/{id}: what this gateway serves, as OpenAI lists it.

In: model names with their context lengths. Out: JSON. Knows no HTTP.
"""

from collections.abc import Callable, Mapping

import orjson

from gateway.errors import ModelNotFound


class ModelList:
    """The models that the gateway serves. `context_lengths`: in tokens, None where only the engine knows.

    `created`: the gateway's start in Unix seconds, since a model has no birthday here.
    """

    def __init__(self, context_lengths: Mapping[str, int | None], created: int) -> None:
        self._context_lengths = context_lengths
        self._created = created

    def encode_all(self, allows: Callable[[str], bool]) -> bytes:
        allowed = filter(allows, self._context_lengths)
        return orjson.dumps({"object": "list", "data": [self._describe(model) for model in allowed]})

    def encode_one(self, model: str, allows: Callable[[str], bool]) -> bytes:
        """Returns one model's entry. Raises ModelNotFound."""
        if model not in self._context_lengths or not allows(model):
            raise unknown_model(model)
        return orjson.dumps(self._describe(model))

    def _describe(self, model: str) -> dict[str, object]:
        described = {"id": model, "object": "model", "created": self._created, "owned_by": "crossover"}
        if (length := self._context_lengths[model]) is not None:
            described["max_model_len"] = length  # vLLM's extension; load testers read it
        return described


def unknown_model(model: str) -> ModelNotFound:
    return ModelNotFound(f"The model '{model[:100]}' does not exist.", param="model")
