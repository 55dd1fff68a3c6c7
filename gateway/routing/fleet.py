"""One model's backends with their readiness, their ledger and the policy that chooses among them.

In: a GenerateRequest. Out: a counted slot, or the error that says why there is none. Knows no other model.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from gateway.core import Backend, GenerateRequest, Load, Route, State
from gateway.errors import BackendUnavailable, InvalidRequest, PolicyChanged
from gateway.routing.health import Health
from gateway.routing.ledger import Ledger, Slot
from gateway.routing.policies import make_policy
from gateway.routing.states import BackendState, ModelState, PolicyChange, PolicyRecord
from gateway.settings import ModelSettings, ProbeSettings

HISTORY_LENGTH = 100


class Fleet:
    """The backends that serve one model. Repr: `<Fleet llama triton=3 vllm=0>`."""

    def __init__(
        self,
        settings: ModelSettings,
        backends: Mapping[str, Backend],
        probe: ProbeSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = settings.id
        self.backends = backends
        self.healths = {name: Health(backend, probe, f"{name} ({self.model})") for name, backend in backends.items()}
        self._clock = clock
        self._policy = make_policy(settings.policy, backends)
        self._ledger = Ledger(backends, self._policy.start(1, clock()))
        first = PolicyRecord(version=1, policy=settings.policy, by="configuration", at=time.time())
        self._history = deque([first], maxlen=HISTORY_LENGTH)

    def __str__(self) -> str:
        return f"{self.model} {self._ledger}"

    def __repr__(self) -> str:
        return f"<Fleet {self}>"

    def place(self, request: GenerateRequest, avoid: Collection[str]) -> Slot:
        """Count the request on the backend of its pin or the policy's choice, never on one in `avoid`."""

        def choose(in_flight: Mapping[str, int], state: State) -> tuple[Route, State]:
            loads = self._loads(in_flight, avoid)
            if request.pin is not None:
                return self._obey_pin(request.pin, loads), state
            if not any(load.is_ready for load in loads.values()):
                raise BackendUnavailable(f"no backend of model {self.model} is ready")
            return self._policy.choose(request, loads, state, self._clock())

        # A calibration pins and tags what it sends; beside live traffic it must not push that across the threshold.
        is_measurement = request.pin is not None and request.run is not None
        return self._ledger.place(choose, steers=not is_measurement)

    def set_policy(self, change: PolicyChange) -> None:
        """In force for the next lease; what is in flight stays where it is. The side is kept if it still exists."""
        self._check_change(change)
        policy = make_policy(change.policy, self.backends)
        version = self._history[-1].version + 1
        # Not a single await from the checks to here: no request can see half of the change.
        self._policy = policy
        self._ledger.restart(lambda old: policy.start(version, self._clock(), old.side))
        self._history.append(PolicyRecord(version, change.policy, change.by, time.time(), change.calibration))

    def state(self) -> ModelState:
        ledger = self._ledger.read()
        backends = {
            name: BackendState(ledger.in_flight[name], ledger.steering[name], health.is_ready)
            for name, health in self.healths.items()
        }
        return ModelState(
            model=self.model,
            backends=backends,
            side=ledger.state.side,
            side_age_s=self._clock() - ledger.state.since,
            switches=ledger.switches,
            history=tuple(self._history),
        )

    def _loads(self, in_flight: Mapping[str, int], avoid: Collection[str]) -> dict[str, Load]:
        return {
            name: Load(in_flight[name], health.is_ready and name not in avoid) for name, health in self.healths.items()
        }

    def _obey_pin(self, pin: str, loads: Mapping[str, Load]) -> Route:
        if pin not in loads:
            known = ", ".join(loads)
            raise InvalidRequest(
                f"x-crossover-pin: {pin[:100]!r} is not a backend of model {self.model} (it has {known})",
                param="x-crossover-pin",
            )
        if not loads[pin].is_ready:
            raise BackendUnavailable(f"backend {pin}, asked for by x-crossover-pin, is not ready")
        return Route(pin, "pin")

    def _check_change(self, change: PolicyChange) -> None:
        current = self._history[-1]
        if current.policy is None:
            raise InvalidRequest(f"model {self.model} has one backend, there is nothing to choose", param="model")
        for key, problem in change.policy.problems(self.backends):
            raise InvalidRequest(f"{key}: {problem}", param=key)
        if change.version not in {None, current.version}:
            raise PolicyChanged(f"version {change.version} was replaced by {current.version}", param="version")
