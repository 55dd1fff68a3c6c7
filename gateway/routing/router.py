"""Leases: which backend answers a request, counted from the choice until the answer is over.

In: a GenerateRequest. Out: a Lease to hold while the engine works. Knows models by name; neither HTTP nor wires.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass

from gateway.core import Backend, GenerateRequest, Route
from gateway.errors import InvalidRequest, ModelNotFound
from gateway.routing.fleet import Fleet
from gateway.routing.health import watching
from gateway.routing.states import ModelState, PolicyChange


@dataclass(frozen=True, slots=True)
class Lease:
    """A request's place on a backend; it counts as in flight for as long as the `with` block lasts."""

    route: Route
    backend: Backend


class Router:
    """Every model's fleet. Repr: `<Router llama triton=3 vllm=0>`."""

    def __init__(self, fleets: Iterable[Fleet]) -> None:
        self._fleets = {fleet.model: fleet for fleet in fleets}

    def __repr__(self) -> str:
        return f"<Router {', '.join(map(str, self._fleets.values()))}>"

    @contextmanager
    def lease(self, request: GenerateRequest, avoid: Collection[str] = frozenset()) -> Iterator[Lease]:
        """Place the request, count it, and give the place back on leaving, however that happens.

        `avoid` names backends that this very request has already failed on. Raises ModelNotFound; InvalidRequest for an
        unknown pin; BackendUnavailable when no backend may be chosen or the pinned one is down.
        """
        fleet = self._find(request.model)
        slot = fleet.place(request, avoid)
        try:
            yield Lease(slot.route, fleet.backends[slot.route.backend])
        finally:
            slot.release()

    def mark_unavailable(self, name: str, model: str | None = None) -> None:
        """A request could not reach this backend: no candidate until it passes a probe. Without `model`, in all."""
        for fleet in self._fleets.values():
            if fleet.model == (model or fleet.model) and name in fleet.healths:
                fleet.healths[name].doubt()

    def set_policy(self, change: PolicyChange) -> ModelState:
        """Replace a model's policy from the next lease on. Raises InvalidRequest naming the key, PolicyChanged."""
        fleet = self._find(change.model)
        fleet.set_policy(change)
        return fleet.state()

    def state(self) -> tuple[ModelState, ...]:
        return tuple(fleet.state() for fleet in self._fleets.values())

    def model_state(self, model: str | None = None) -> ModelState:
        """One model's state; None means the only one there is."""
        return self._find(model).state()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Probes every backend while inside; entered once each has been asked a first time."""
        return watching(health for fleet in self._fleets.values() for health in fleet.healths.values())

    def _find(self, model: str | None) -> Fleet:
        if model is None:
            if len(self._fleets) > 1:
                raise InvalidRequest(f"model: name one of {', '.join(self._fleets)}", param="model")
            return next(iter(self._fleets.values()))
        if model not in self._fleets:
            raise ModelNotFound(f"the model {model!r} does not exist", param="model")
        return self._fleets[model]
