"""What a vLLM server tells of itself over HTTP: /metrics, /version, /v1/models.

Any server with OpenAI's /v1/models can be asked; the rest is unknown where it does not speak vLLM's words.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.evidence.exposition import find_labels, sum_count
from gateway.evidence.pages import Pages
from gateway.evidence.values import Identity

# Of the many labels of vllm:cache_config_info those an operator sets; others, like the number of blocks that fitted,
# come out differently at each start.
CACHE_SETTINGS = ("cache_dtype", "block_size", "enable_prefix_caching", "gpu_memory_utilization")
MODEL_SETTINGS = ("root", "max_model_len")


class VLLMReader:
    """`metrics_url` is where the metrics page lies. Implements readers.Reader."""

    def __init__(self, url: str, metrics_url: str, pages: Pages, engine: str | None = None) -> None:
        self._url = url
        self._metrics_url = metrics_url
        self._pages = pages
        self._engine = engine
        self._cache: Identity = {}

    async def read_metrics(self) -> bytes | None:
        return await self._pages.fetch(self._metrics_url)

    def count(self, page: bytes) -> int | None:
        """Over all engine processes behind the one API server, which label their samples."""
        running = sum_count(page, "vllm:num_requests_running")
        waiting = sum_count(page, "vllm:num_requests_waiting")
        return None if running is None or waiting is None else running + waiting

    async def identify(self, page: bytes | None) -> Identity:
        if page is not None:  # without one these settings are what they were
            self._cache = _read_cache(page)
        told: dict[str, str | int] = {} if self._engine is None else {"engine": self._engine}
        version = (await self._pages.fetch_json(f"{self._url}/version")).get("version")
        if isinstance(version, str):
            told["version"] = version
        models = await self._pages.fetch_json(f"{self._url}/v1/models")
        return {**told, **dict(_read_card(models)), **self._cache}

    async def aclose(self) -> None:
        """The pages are not ours to close."""


def _read_card(models: Mapping[str, Any]) -> Iterator[tuple[str, str | int]]:  # Any: JSON
    """The base model's, which vLLM lists before its adapters."""
    cards = models.get("data")
    if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict):
        return
    for key, field in (("id", "model"), *((name, name) for name in MODEL_SETTINGS)):
        if isinstance(value := cards[0].get(key), str | int):
            yield field, value


def _read_cache(page: bytes) -> dict[str, str | int]:
    labels = next(find_labels(page, "vllm:cache_config_info"), {})
    return {name: labels[name] for name in CACHE_SETTINGS if name in labels}
