"""GET /v1/models and /v1/models/{id}: what this gateway serves, as OpenAI lists it.

In: model names with their languages. Out: JSON. Knows no HTTP.
"""

from collections.abc import Mapping

import orjson

from gateway.errors import ModelNotFound
from gateway.language import ModelLanguage


class ModelList:
    """`created` is in Unix seconds; a model has no birthday here, so it is the gateway's start."""

    def __init__(self, languages: Mapping[str, ModelLanguage], created: int) -> None:
        self._languages = languages
        self._created = created

    def find(self, model: str) -> ModelLanguage:
        """Raises ModelNotFound."""
        try:
            return self._languages[model]
        except KeyError:
            raise ModelNotFound(f"The model '{model[:100]}' does not exist.", param="model") from None

    def encode_all(self) -> bytes:
        return orjson.dumps({"object": "list", "data": [self._describe(model) for model in self._languages]})

    def encode_one(self, model: str) -> bytes:
        """Raises ModelNotFound."""
        self.find(model)
        return orjson.dumps(self._describe(model))

    def _describe(self, model: str) -> dict[str, object]:
        return {
            "id": model,
            "object": "model",
            "created": self._created,
            "owned_by": "crossover",
            "max_model_len": self._languages[model].context_length,  # vLLM's extension; load testers read it
        }
