"""One Engine for each server, however many models of the configuration it serves. In: settings. Out: Engines."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gateway.evidence.http import Http
from gateway.evidence.values import Identity, Place, Size
from gateway.settings import BackendSettings, ModelSettings


class Reader(Protocol):
    """Reads one kind of engine. Every await is bounded in time and raises NoAnswer when nothing was learnt."""

    async def read_metrics(self) -> bytes | None:
        """Returns the engine's metrics page, None if it has none."""
        ...

    def count(self, page: bytes) -> int | None:
        """Returns the requests that the engine holds, running or waiting; None if the page does not have that."""
        ...

    def read_size(self, page: bytes) -> Size:
        """Returns what the page shows of how much the engine can hold."""
        ...

    async def identify(self, page: bytes | None) -> Identity: ...

    async def aclose(self) -> None: ...


class ReadableKind(Protocol):
    """A kind of engine, as far as this room is concerned; engine_kinds has them."""

    @property
    def open_reader(self) -> Callable[[Any, Http], Reader]: ...  # Any: each kind has settings of its own


@dataclass(frozen=True, slots=True)
class Engine:
    """One server. `places`: the backends that stand for it; it counts the requests of all of them together."""

    reader: Reader
    places: tuple[Place, ...]

    def __str__(self) -> str:
        return ", also ".join(f"{place.backend} ({place.model})" for place in self.places)


@asynccontextmanager
async def open_engines(
    models: Iterable[ModelSettings], kinds: Mapping[str, ReadableKind]
) -> AsyncIterator[tuple[Engine, ...]]:
    """Yields every engine of the configuration once; closes the connections on leaving."""
    places: dict[BackendSettings, list[Place]] = {}
    for model in models:
        for name, backend in model.backends.items():
            places.setdefault(replace(backend, name=""), []).append(Place(model.id, name))
    async with AsyncExitStack() as stack:
        http = Http()
        stack.push_async_callback(http.aclose)
        engines = tuple(
            Engine(kinds[backend.kind].open_reader(backend, http), tuple(held)) for backend, held in places.items()
        )
        for engine in engines:
            stack.push_async_callback(engine.reader.aclose)
        yield engines
