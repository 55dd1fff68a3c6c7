"""A reader of /version, /v1/models and a metrics page, and checks of the page, for the kinds with OpenAI's API.

Metrics have vLLM's names. A server with other names needs a kind of its own, which derives from this reader.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from gateway.doctor import Fault, Finding, Statement, vllm_settings
from gateway.evidence import Http, Identity, NoAnswer, Silence, Size
from gateway.evidence.exposition import find_labels, sum_count

# Of the many labels of vllm:cache_config_info those that an operator sets; others, like the number of blocks that
# fitted, come out differently at each start.
CACHE_SETTINGS = ("cache_dtype", "block_size", "enable_prefix_caching", "gpu_memory_utilization")
SILENCE_FAULTS = {Silence.NOBODY: Fault.UNREACHABLE, Silence.MUTE: Fault.NOT_READY, Silence.FOREIGN: Fault.WRONG_WIRE}


class OpenAIReader:
    """Reads a server at `url`; `metrics_url` None: it has no page to read. Implements evidence.Reader.

    `engine`: its program, if known. `key`: sent as a bearer token. `COUNTS`: the samples whose sum is its count.
    """

    COUNTS: ClassVar[tuple[str, ...]] = ("vllm:num_requests_running", "vllm:num_requests_waiting")

    def __init__(
        self, http: Http, url: str, metrics_url: str | None, engine: str | None = None, key: str | None = None
    ) -> None:
        self.metrics_url = metrics_url
        self._http = http
        self._url = url
        self._key = key
        self._engine: Identity = {} if engine is None else {"engine": engine}
        self._cache: Identity = {}

    async def read_metrics(self) -> bytes | None:
        answer = None if self.metrics_url is None else await self._http.fetch(self.metrics_url, self._key)
        return None if answer is None else answer.body

    def count(self, page: bytes) -> int | None:
        """Sums the counts of all engine processes behind the API server, which label their samples."""
        counts = [sum_count(page, name) for name in self.COUNTS]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def read_settings(self, page: bytes) -> Iterator[Statement]:
        """Returns what the page shows of the engine's settings, for the doctor."""
        return vllm_settings.read_page(page)

    def read_size(self, page: bytes) -> Size:
        """Reads vLLM's: each of its replicas (data parallelism) has a sample of its own."""
        caches = list(find_labels(page, "vllm:cache_config_info"))
        size: dict[str, float] = {"replicas": len(caches)} if caches else {}
        blocks = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size") for labels in caches[:1]]
        if blocks and all(text.isdigit() for text in blocks):
            size["kv_tokens"] = math.prod(map(int, blocks))
        return {**size, **_read_speculation(page)}

    async def identify(self, page: bytes | None) -> Identity:
        if page is not None:  # without one these settings are what they were
            self._cache = _pick(next(find_labels(page, "vllm:cache_config_info"), {}), CACHE_SETTINGS)
        version, models = await self._fetch_json("/version"), await self._fetch_json("/v1/models")
        return {**self._engine, **_pick(version, ("version",)), **_read_card(models), **self._cache}

    async def aclose(self) -> None:
        """Does nothing: the caller closes the connections."""

    async def _fetch_json(self, path: str) -> Mapping[str, Any]:  # Any: another server's JSON
        answer = await self._http.fetch(self._url + path, self._key)
        return {} if answer is None else answer.document


def _read_card(models: Mapping[str, Any]) -> Identity:  # Any: JSON
    """Reads the card of the base model, which vLLM lists before its adapters."""
    cards = models.get("data")
    if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict):
        return {}
    card = cards[0]
    return _pick(card | {"model": card.get("id")}, ("model", "root", "max_model_len"))


def _pick(fields: Mapping[str, Any], names: Iterable[str]) -> Identity:  # Any: JSON
    return {name: fields[name] for name in names if type(fields.get(name)) in {str, int}}


def _read_speculation(page: bytes) -> Size:
    """Reads how many tokens a step has given in the mean; nothing before the first draft."""
    drafts, drafted, accepted = (
        sum_count(page, f"vllm:spec_decode_num_{name}_total") or 0
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    return {"tokens_per_step": 1 + accepted / drafts, "verified": 1 + round(drafted / drafts)} if drafts else {}


def explain_silence(where: str, url: str, exc: NoAnswer) -> Finding:
    return Finding(SILENCE_FAULTS[exc.silence], where, f"at {url} is {exc.silence.value} ({exc})")


async def examine_page(where: str, reader: OpenAIReader) -> tuple[bytes | None, tuple[Finding, ...]]:
    """Returns the metrics page, and a finding if it has no count of the engine's."""
    if reader.metrics_url is None:
        return None, ()
    try:
        page = await reader.read_metrics()
    except NoAnswer as exc:
        return None, (Finding(Fault.METRICS_SILENT, where, str(exc)),)
    # With several API processes vLLM's page names the counts, and has no sample of them before the first request.
    if page is None or (reader.count(page) is None and reader.COUNTS[-1].encode() not in page):
        seen = f"{reader.metrics_url} has no {' and '.join(reader.COUNTS)}"
        return page, (Finding(Fault.METRICS_SILENT, where, seen),)
    return page, ()
