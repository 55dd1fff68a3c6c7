"""One reader per engine, however many models of the configuration it serves. In: settings. Out: engines to watch."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.evidence.openai import OpenAIReader
from gateway.evidence.pages import Pages
from gateway.evidence.triton import TritonReader
from gateway.evidence.values import Identity, Place
from gateway.settings import BackendSettings, ModelSettings, RelaySettings, TritonSettings, VLLMSettings


class Reader(Protocol):
    """How one kind of engine is asked. Every await is bounded and raises Silent when nothing was learnt."""

    async def read_metrics(self) -> bytes | None:
        """Its metrics page; None if it has none."""
        ...

    def count(self, page: bytes) -> int | None:
        """Requests it holds, running or waiting; None if the page does not say."""
        ...

    async def identify(self, page: bytes | None) -> Identity: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """One server. `places`: the backends that stand for it; it counts the requests of all of them together."""

    reader: Reader
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return ", also ".join(f"{place.backend} ({place.model})" for place in self.places)


@asynccontextmanager
async def open_engines(models: Iterable[ModelSettings]) -> AsyncIterator[tuple[Engine, ...]]:
    """Every engine of the configuration once; connections are closed on leaving."""
    places: dict[BackendSettings, list[Place]] = {}
    for model in models:
        for name, backend in model.backends.items():
            places.setdefault(replace(backend, name=""), []).append(Place(model.id, name))
    async with AsyncExitStack() as stack:
        pages = Pages()
        stack.push_async_callback(pages.aclose)
        engines = tuple(Engine(_make_reader(backend, pages), tuple(held)) for backend, held in places.items())
        for engine in engines:
            stack.push_async_callback(engine.reader.aclose)
        yield engines


def _make_reader(backend: BackendSettings, pages: Pages) -> Reader:
    match backend:
        case TritonSettings():
            return TritonReader(backend, pages)
        case VLLMSettings():
            return OpenAIReader(pages, backend.url, f"{backend.url}/metrics", engine="vllm")
        case RelaySettings():
            return OpenAIReader(pages, backend.url, backend.metrics_url, key=backend.api_key)
