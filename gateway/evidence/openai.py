"""What a server with OpenAI's API tells of itself: /version, /v1/models and a metrics page, as vLLM has them.

Of other servers is unknown what they do not tell in vLLM's words.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.evidence.exposition import find_labels, sum_count
from gateway.evidence.pages import Pages
from gateway.evidence.values import Identity

# Of the many labels of vllm:cache_config_info those an operator sets; others, like the number of blocks that fitted,
# come out differently at each start.
CACHE_SETTINGS = ("cache_dtype", "block_size", "enable_prefix_caching", "gpu_memory_utilization")


class OpenAIReader:
    """Of a server at `url`; `metrics_url` None: it has no page to read. Implements readers.Reader.

    `engine`: what it is known to be. `key`: what it wants to be shown, if anything.
    """

    def __init__(
        self, pages: Pages, url: str, metrics_url: str | None, engine: str | None = None, key: str | None = None
    ) -> None:
        self._pages = pages
        self._url = url
        self._metrics_url = metrics_url
        self._key = key
        self._engine: Identity = {} if engine is None else {"engine": engine}
        self._cache: Identity = {}

    async def read_metrics(self) -> bytes | None:
        return None if self._metrics_url is None else await self._pages.fetch(self._metrics_url, self._key)

    def count(self, page: bytes) -> int | None:
        """Over all engine processes behind the one API server, which label their samples."""
        running = sum_count(page, "vllm:num_requests_running")
        waiting = sum_count(page, "vllm:num_requests_waiting")
        return None if running is None or waiting is None else running + waiting

    async def identify(self, page: bytes | None) -> Identity:
        if page is not None:  # without one these settings are what they were
            self._cache = _read_cache(page)
        version = await self._pages.fetch_json(f"{self._url}/version", self._key)
        models = await self._pages.fetch_json(f"{self._url}/v1/models", self._key)
        return {**self._engine, **_pick(version, ("version",)), **_read_card(models), **self._cache}

    async def aclose(self) -> None:
        """The pages are not ours to close."""


def _read_card(models: Mapping[str, Any]) -> Identity:  # Any: JSON
    """The base model's, which vLLM lists before its adapters."""
    cards = models.get("data")
    if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict):
        return {}
    card = cards[0]
    return _pick(card | {"model": card.get("id")}, ("model", "root", "max_model_len"))


def _read_cache(page: bytes) -> Identity:
    return _pick(next(find_labels(page, "vllm:cache_config_info"), {}), CACHE_SETTINGS)


def _pick(fields: Mapping[str, Any], names: Iterable[str]) -> Identity:  # Any: JSON
    return {name: fields[name] for name in names if type(fields.get(name)) in {str, int}}
