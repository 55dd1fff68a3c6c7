"""All models' fleets together: what is done for each of them, or for one by its name.

In: a model's name, or a beat of the worker. Out: a fleet, or what the fleets return. Knows neither HTTP nor wires.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

from gateway.core import Leaving
from gateway.errors import InvalidRequest, ModelNotFound
from gateway.flow import ModelFlow
from gateway.restarts import Standing
from gateway.routing.fleet import Fleet
from gateway.routing.health import watching
from gateway.routing.learned import AllLearned, LearnedFile, keeping
from gateway.routing.policy_file import PolicyFile
from gateway.routing.states import Engine, ModelState, PolicyChange, WorkerState
from gateway.shared import Roster


class Router:
    """Every model's fleet. Repr: `<Router llama triton=3 vllm=0>`.

    `roster` names the node's workers. `policies`: where each change is kept, `learned`: and what policies learn.
    """

    def __init__(self, fleets: Iterable[Fleet], roster: Roster, policies: PolicyFile, learned: LearnedFile) -> None:
        self._fleets = {fleet.model: fleet for fleet in fleets}
        self._policies = policies
        self._learned = learned
        self._roster = roster
        self.worker = self._roster.index  # this process among the node's

    def __repr__(self) -> str:
        return f"<Router {', '.join(map(str, self._fleets.values()))}>"

    def admit(self) -> Collection[str]:
        """Lets requests go on that wait for what other workers have freed; returns the models for which others still
        wait. Once a beat.
        """
        return [model for model, fleet in self._fleets.items() if fleet.beat()]

    def set_policy(self, change: PolicyChange) -> ModelState:
        """Replaces a model's policy from the next lease on. Raises PolicyChanged, and InvalidRequest naming the key."""
        fleet = self.find(change.model)
        fleet.set_policy(change)
        return fleet.state()

    def keep_policy(self, state: ModelState) -> None:
        """Writes the policies of a state, so that the next start goes on with them. Waits for the disk."""
        self._policies.try_to_keep(state.model, state.history)

    def keeping(self) -> AbstractAsyncContextManager[None]:
        """Writes what the policies learn while inside. One process of the node does this, and identifies engines."""
        for fleet in self._fleets.values():
            fleet.remember(self._learned)
        return keeping(self._learned, self._find_learned)

    def identify(self, model: str, backend: str, engine: Engine) -> None:
        """Notes which engine a backend is; what a policy has learned of another one is forgotten."""
        self._fleets[model].identify(backend, engine)

    def drain(self, backend: str, is_draining: bool, model: str | None = None, *, force: bool = False) -> ModelState:
        """Empties a backend, or uses it again; `model` None: the only one. `force`: also the last one that is used.

        Raises InvalidRequest, ModelNotFound, LastBackend.
        """
        fleet = self.find(model)
        fleet.drain(backend, is_draining, force)
        return fleet.state()

    def plan(self) -> None:
        """Has each model's policy plan for the demand of now, once a beat for the node."""
        for fleet in self._fleets.values():
            if fleet.plans:
                fleet.plan()

    def flows(self) -> Mapping[str, ModelFlow]:
        """Returns by model this worker's answers under way."""
        return {name: fleet.flow for name, fleet in self._fleets.items()}

    def find_stuck(self) -> Mapping[str, Collection[str]]:
        """Returns by model the backends that have just been found to generate nothing; once a beat."""
        return {name: stuck for name, fleet in self._fleets.items() if (stuck := fleet.find_stuck())}

    def find_left(self) -> Mapping[str, Leaving]:
        """Returns by model the backends that running answers should leave; no entry where there are none."""
        return {name: left for name, fleet in self._fleets.items() if (left := fleet.find_left())}

    def state(self) -> tuple[ModelState, ...]:
        return tuple(fleet.state() for fleet in self._fleets.values())

    def workers(self, states: Iterable[ModelState]) -> tuple[WorkerState, ...]:
        """Returns the live workers of the node, and what each has in flight over all models, by these states."""
        in_flight = [sum(counts) for counts in zip(*(state.workers for state in states), strict=True)]
        return tuple(
            WorkerState(member.index, member.pid, member.started, in_flight[member.index])
            for member in self._roster.read()
        )

    def standing(self) -> Standing:
        """Returns which generation of workers serves, and what became of the last restart."""
        return self._roster.standing()

    def model_state(self, model: str | None = None) -> ModelState:
        """Returns one model's state; `model` None means the only model there is."""
        return self.find(model).state()

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Probes every backend while inside; the block begins once each has been probed a first time."""
        return watching([health for fleet in self._fleets.values() for health in fleet.healths.values()])

    def _find_learned(self) -> AllLearned:
        return {name: fleet.find_learned() for name, fleet in self._fleets.items()}

    def find(self, model: str | None) -> Fleet:
        """Returns the fleet of a model; None means the only one there is. Raises ModelNotFound, InvalidRequest."""
        if model is None:
            if len(self._fleets) > 1:
                raise InvalidRequest(f"model: name one of {', '.join(self._fleets)}", param="model")
            return next(iter(self._fleets.values()))
        if model not in self._fleets:
            raise ModelNotFound(f"the model {model!r} does not exist", param="model")
        return self._fleets[model]
