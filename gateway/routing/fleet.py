"""One model's backends with their readiness, their ledger and the policy that chooses among them.

In: a request. Out: a lease, or the error that explains why there is none. Knows no other model.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from gateway.core import Backend, Demand, Leaving, Load, Placeable, Policy, Route, State
from gateway.errors import BackendUnavailable, InvalidRequest, LastBackend, PolicyChanged
from gateway.routing.admission import Admission, MustWait
from gateway.routing.conduct import Stage
from gateway.routing.dry import DryRun
from gateway.routing.ejection import Ejection
from gateway.routing.health import Health
from gateway.routing.history import decode_history, encode_history
from gateway.routing.learned import Learned, LearnedFile
from gateway.routing.ledger import TEXT_BYTES, Lease, Ledger
from gateway.routing.needs import find_lacking, make_refusal
from gateway.routing.policies import READERS, Single
from gateway.routing.policy_file import PolicyFile
from gateway.routing.states import BackendState, Engine, ModelState, PolicyChange, PolicyRecord
from gateway.routing.waiting import Ticket
from gateway.settings import ModelSettings, ProbeSettings

logger = logging.getLogger(__name__)

MOST_TOKENS = 1 << 20  # of an answer whose limit nobody has read
LOOK_BEATS = 20  # from one look at the policy's model to the next
RIGHT_S = 60.0  # for which a model must not have been found wrong to be reported as right again


def first_policy(
    settings: ModelSettings,
    policies: PolicyFile,
    learned: LearnedFile,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[State, bytes]:
    """Returns the state and the text that a model's ledger begins with: of the policy kept, or configured.

    What that policy had learned is in the state.
    """
    records = policies.begin(settings)
    policy = records[-1].policy or Single(settings.chosen_from[0])
    state = _resume(policy, policy.start(records[-1].version, clock()), learned, settings.id)
    return state, encode_history(records, TEXT_BYTES)


def _resume(policy: Policy, state: State, file: LearnedFile, model: str) -> State:
    """Returns the state with what was learned; as it is, where that is damaged or was another policy's."""
    try:
        if (learned := file.read(model, policy.kind)) is not None:
            return policy.resume(state, learned.kept)
    except (OSError, ValueError) as exc:
        logger.warning("the policy of %s learns anew, because %s is of no use: %s", model, file.path, exc)
    return state


class Shared(NamedTuple):
    """What all workers of a node share of one model; `dry`: its policy on trial."""

    ledger: Ledger
    dry: DryRun | None


class Fleet:
    """The backends that serve one model. Repr: `<Fleet llama triton=3 vllm=0>`."""

    def __init__(
        self,
        settings: ModelSettings,
        backends: Mapping[str, Backend],
        probe: ProbeSettings,
        shared: Shared,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = settings.id
        self.backends = backends
        self._chosen_from = settings.chosen_from
        self.max_outage_s = settings.queue.max_outage_s
        self._waits = min(settings.queue.max_wait_s, self.max_outage_s) > 0
        self._clock = clock
        self._ledger, self._dry = shared
        self.quarantine = self._ledger.quarantine
        self.flow = self._ledger.demand.flow  # this worker's answers under way
        self.find_lengths = self._ledger.demand.find_lengths  # by those of all workers
        self.healths = {
            name: Health(backend, probe, f"{name} ({self.model})", partial(self._ledger.report, name), clock)
            for name, backend in backends.items()
        }
        is_on = settings.ejection == "on"
        self.admission = Admission(settings, self._place, self._ledger.waiting, self._ledger.seats)
        self.leave = self._ledger.waiting.leave  # has a request not wait any more
        self.ejection = Ejection(self.healths, self._chosen_from, self._ledger, clock, is_on=is_on)
        self._follow(self._ledger.read().text)
        self._engines: dict[str, Engine] = {}
        self._beats = self._looks = 0
        self._wrong: dict[str, float] = {}  # backends whose model is, as far as was reported; when that was found last

    def __str__(self) -> str:
        return f"{self.model} {self._ledger}"

    def __repr__(self) -> str:
        return f"<Fleet {self}>"

    def lease(self, request: Placeable, avoid: Collection[str] = frozenset()) -> Lease:
        """Counts the request on the backend of its pin or the policy's choice, until the lease is closed.

        `avoid` names backends that it may not go to, or has already failed on. One that cannot do what the request
        needs is no candidate, whatever the load. Raises InvalidRequest for an unknown pin or a need that no backend
        meets, BackendUnavailable when the pinned one is down, and MustWait when none has room or is ready, or others
        wait: then `wait`.
        """
        if request.pin is None and self._ledger.waiting.is_contended():
            raise MustWait
        return self._place(request, avoid, arrives=True)

    def wait(self, ticket: Ticket, client: str) -> None:
        """Has a request wait until it is admitted, or refused; `leave` ends that. Raises Overloaded if it cannot be
        answered in time. `client`: the name of the client that sent it; clients take turns.
        """
        request = ticket.request
        ticket.is_picky |= not ticket.avoid.isdisjoint(self._chosen_from)
        answer = self.find_lengths().left(0, request.max_tokens or MOST_TOKENS)
        self.admission.wait(ticket, client, request.sequences * (answer + request.prompt_tokens))
        self._ledger.demand.arrive(request.sequences, None, request.prompt_tokens)

    def beat(self) -> bool:
        """Lets requests go on for which there is room now; returns whether others still wait. Once a beat."""
        if self._looks == 0:
            state, _ = self._follow_others()
            self.admission.note_capacities({name: self._policy.find_capacity(name, state) for name in self.backends})
        self._looks = (self._looks + 1) % LOOK_BEATS
        self._ledger.note_choices(self._clock())
        self.admission.beat()
        return self._ledger.waiting.is_contended()

    def _place(self, request: Placeable, avoid: Collection[str], *, arrives: bool = False) -> Lease:
        # A calibration pins and tags what it sends; beside live traffic it must not push that across the threshold.
        pin, ledger = request.pin, self._ledger
        steers = pin is None or request.run is None
        is_free = pin is None and not (request.needs and self._find_lacking(request))
        try:
            with ledger.counting:
                in_flight = ledger.count()
                route, state = self._choose_with_room(request, avoid, in_flight, ledger.state)
                if self._dry is not None and is_free:
                    self._dry.choose(request, self._find_loads(request, avoid, in_flight), route.backend, self._clock())
                lease = ledger.place(route, state, sequences=request.sequences, steers=steers)
        except BackendUnavailable as why:
            if pin is not None or not self._waits:
                raise
            raise MustWait(why) from None
        if self.ejection.suspects:
            self.ejection.note_placed(route.backend)
        if steers and arrives:
            ledger.demand.arrive(request.sequences, None if is_free else route.backend, request.prompt_tokens)
        return lease

    def move(self, lease: Lease, request: Placeable, avoid: Collection[str]) -> None:
        """Counts the request's lease where the policy would place it now, never on a backend in `avoid`, in one step.

        Raises what `lease` raises; then the lease stays as it is. A drained backend takes it if no other is ready,
        because it would be lost otherwise. It leaves once one is.
        """
        ledger = self._ledger
        with ledger.counting:
            in_flight = ledger.count(lease)
            try:
                route, state = self._choose_able(request, avoid, in_flight, ledger.state)
            except BackendUnavailable:
                if (drained := self._find_drained(request, avoid)) is None:
                    raise
                route, state = Route(drained, "drained, but no other is ready"), ledger.state
            ledger.move(lease, route, state)
        self.ejection.note_placed(route.backend)

    def _choose_with_room(
        self, request: Placeable, avoid: Collection[str], in_flight: Mapping[str, int], state: State
    ) -> tuple[Route, State]:
        """Chooses where there is room, also at another backend if the policy allows it. Raises MustWait."""
        route, after = self._choose_able(request, avoid, in_flight, state)
        flow, name = self._ledger.demand.flow, route.backend
        if request.pin is not None or self.admission.has_room(name, in_flight[name], request, flow):
            return route, after
        if not self._policy.spills:
            raise MustWait
        full = {each for each in self.backends if not self.admission.has_room(each, in_flight[each], request, flow)}
        try:
            spilled, _ = self._choose_able(request, full.union(avoid), in_flight, state)
        except BackendUnavailable:
            raise MustWait from None
        if not self.ejection.may_take(spilled.backend):  # it would serve if no other did, and one does
            raise MustWait
        return Route(spilled.backend, f"{name}=full {spilled.reason}"), after

    def _find_loads(
        self, request: Placeable, avoid: Collection[str], in_flight: Mapping[str, int]
    ) -> Mapping[str, Load]:
        if self._ledger.draining and request.pin is None:
            avoid = self._ledger.draining.union(avoid)
        if self.ejection.suspects and request.pin is None:
            avoid = self.ejection.bar(avoid)
        brief = self._ledger.brief
        return {
            name: _make_load(in_flight[name], health.is_ready and name not in avoid, brief[name])
            for name, health in self.healths.items()
        }

    def _choose(
        self, request: Placeable, avoid: Collection[str], in_flight: Mapping[str, int], state: State
    ) -> tuple[Route, State]:
        loads = self._find_loads(request, avoid, in_flight)
        if request.pin is not None:
            return self._obey_pin(request.pin, loads), state
        for load in loads.values():
            if load.is_ready:
                break
        else:
            able = f" that supports {' and '.join(map(repr, request.needs.values()))}" if request.needs else ""
            raise BackendUnavailable(f"no backend of model {self.model}{able} is ready")
        if state.version != self._version:
            self._follow(self._ledger.text())
        return self._policy.choose(request, loads, state, self._clock())

    def _choose_able(
        self, request: Placeable, avoid: Collection[str], in_flight: Mapping[str, int], state: State
    ) -> tuple[Route, State]:
        """Chooses a backend that meets the request's needs. They move the request; the state follows the load alone."""
        if not request.needs:
            return self._choose(request, avoid, in_flight, state)
        lacking = self._find_lacking(request)
        route, after = self._choose(request, avoid, in_flight, state)
        if route.backend not in lacking:
            return route, after
        instead, _ = self._choose(request, lacking.union(avoid), in_flight, state)
        return Route(instead.backend, f"needs={','.join(request.needs)} {route.reason}"), after

    def _find_drained(self, request: Placeable, avoid: Collection[str]) -> str | None:
        able = self._ledger.draining.difference(avoid, self._find_lacking(request))
        return next((name for name in able if self.healths[name].is_ready), None)

    def _find_lacking(self, request: Placeable) -> frozenset[str]:
        """Returns the backends that do not meet its needs. Raises InvalidRequest if it may go to no other backend."""
        lacking = find_lacking(request.needs, self.backends)
        may_have = [name for name in self.backends if request.pin in {None, name}]
        # Some servers are asked what they can do by the first good probe: until then they are unavailable, not unable.
        if may_have and all(name in lacking and self.healths[name].was_ready for name in may_have):
            model = f"model {self.model}"
            by = f"any engine of {model}" if request.pin is None else f"backend {request.pin} of {model}"
            raise make_refusal(request.needs, [self.backends[name] for name in may_have], by)
        return lacking

    def set_policy(self, change: PolicyChange) -> None:
        """Puts the policy in force for the next lease of any worker; nothing in flight is dropped.

        The side is kept if it still exists.
        """
        self._check_change(change)

        def replace(state: State, text: bytes) -> tuple[State, bytes]:
            history = decode_history(text, READERS)
            if change.version not in {None, state.version}:
                raise PolicyChanged(f"version {change.version} was replaced by {state.version}", param="version")
            origin = (change.by, time.time(), change.calibration, change.fingerprint)
            record = PolicyRecord(state.version + 1, change.policy, *origin)
            started = change.policy.start(record.version, self._clock(), state.side)
            return started, encode_history([*history, record], TEXT_BYTES)

        self._ledger.replace(replace)

    @property
    def plans(self) -> bool:
        """Whether the policy in force, or on trial, makes plans, and so has to know the demand."""
        self._follow_others()
        return self._policy.plans or (self._dry is not None and self._dry.policy.plans)

    def plan(self) -> None:
        """Lets the policies plan for the demand of now, once a beat for the node."""
        for name, backend in self.backends.items():
            self.flow.cache_use[name] = backend.cache_use
        self._ledger.demand.note()
        now = self._clock()

        def change(demand: Demand, state: State) -> State:
            if self._dry is not None:
                self._dry.plan(demand, now)
            return self._policy.plan(demand, state, now)

        self._ledger.plan(change, now)
        self._beats += 1
        if self._ledger.is_first and self._beats % LOOK_BEATS == 0:  # one worker reports for the node
            self._report_model(now)

    def _report_model(self, now: float) -> None:
        """Logs where engines stop being those that the policy's model was made of, and where they are again."""
        readings = self._policy.readings(self._ledger.glance()[0])
        wrong = [name for name, found in readings.items() if found.get("model_wrong")]
        for name in sorted(set(wrong) - self._wrong.keys()):
            logger.warning(
                "%s of %s is not the engine that was measured: %s; calibrate again (crossover calibrate --apply)",
                name,
                self.model,
                " ".join(f"{key}={value:g}" for key, value in readings[name].items()),
            )
        self._wrong.update(dict.fromkeys(wrong, now))
        for name in [name for name, found_at in self._wrong.items() if now - found_at >= RIGHT_S]:
            del self._wrong[name]
            logger.info("%s of %s is as it was measured again", name, self.model)

    def find_learned(self) -> Learned | None:
        """Returns what the policy has learned, and the engines that it was learned of; those this worker knows."""
        state, _ = self._follow_others()
        kept = self._policy.find_kept(state)
        return None if kept is None else Learned(self._policy.kind, kept, dict(self._engines))

    def remember(self, file: LearnedFile) -> None:
        """Reads which engines the policy has learned of, as far as it goes on with that."""
        with suppress(OSError, ValueError):  # that was reported at the start of the node
            if (learned := file.read(self.model, self._policy.kind)) is not None:
                self._engines = dict(learned.engines)

    def identify(self, backend: str, engine: Engine) -> None:
        """Notes which engine a backend is; what the policy has learned is forgotten if it was of another one.

        What is unknown on either side is no change.
        """
        before = self._engines.get(backend, {})
        changes = [f"{key} was {before[key]}, is {now}" for key, now in engine.items() if before.get(key, now) != now]
        self._engines[backend] = {**before, **engine}
        if changes and self._forget():
            logger.warning("the policy of %s learns anew: %s %s", self.model, backend, "; ".join(changes))

    def _forget(self) -> bool:
        """Starts the policy anew. Returns False if it has learned nothing."""
        has_learned = False

        def replace(state: State, text: bytes) -> tuple[State, bytes]:
            nonlocal has_learned
            if state.version != self._version:
                self._follow(text)
            if has_learned := self._policy.find_kept(state) is not None:
                state = self._policy.start(state.version, self._clock(), state.side)
            return state, text

        self._ledger.replace(replace)
        return has_learned

    def drain(self, backend: str, is_draining: bool, force: bool) -> None:
        """Lets a backend get no further requests but pinned ones, and its answers go on elsewhere; or ends that."""
        if backend not in self.backends:
            known = ", ".join(self.backends)
            raise InvalidRequest(
                f"{backend!r} is not a backend of model {self.model} (it has {known})", param="backend"
            )
        _, draining = self._follow_others()
        left = set(self._chosen_from) - draining - {backend}
        if is_draining and not force and not left and backend in self._chosen_from:
            raise LastBackend(
                f"{backend} is the last backend of model {self.model} that gets requests: without it all are answered "
                'with 503. Add "force": true to the body for that',
                param="backend",
            )
        self._ledger.drain(backend, is_draining)

    def find_stuck(self) -> Collection[str]:
        """Ejects the backends whose streams have had no token for far too long, and returns them. Once a beat."""
        return self.ejection.find_stuck(self.flow, self._find_step_s)

    def _find_step_s(self, backend: str, streams: int, waiting: float) -> float | None:
        return self._policy.find_step_s(backend, self._follow_others()[0], streams, waiting)

    def find_left(self) -> Leaving | None:
        """Returns the backends that running answers should leave, if there is another: drained ones, the policy's."""
        state, draining = self._follow_others()
        left = draining.union(self._policy.find_left(state))
        has_other = any(
            health.is_ready for name, health in self.healths.items() if name not in left | self.ejection.suspects
        )
        if not left or not has_other:
            return None
        return Leaving(left, self._policy.find_terms(state, left, sum(self._ledger.read().in_flight.values())))

    def state(self) -> ModelState:
        ledger = self._ledger.read()
        if ledger.state.version != self._version:
            self._follow(ledger.text)
        readings, cached = self._policy.readings(ledger.state), self._ledger.demand.find_cached()
        backends = {
            name: BackendState(
                ledger.in_flight[name],
                ledger.steering[name],
                health.is_ready and name not in ledger.doubted,
                health.conduct.stage is not Stage.IN,
                name in ledger.draining,
                self.backends[name].capabilities,
                readings.get(name, {}),
                cached.get(name),
            )
            for name, health in self.healths.items()
        }
        return ModelState(
            model=self.model,
            workers=ledger.workers,
            backends=backends,
            side=ledger.state.side,
            side_age_s=self._clock() - ledger.state.since,
            switches=ledger.switches,
            history=self._history,
            dry=None if self._dry is None else self._dry.read(self._clock),
            waiting=self._ledger.waiting.total,
        )

    def _follow_others(self) -> tuple[State, frozenset[str]]:
        """Reads the policy if another worker has changed it. Returns its state, and the backends that drain."""
        state, draining = self._ledger.glance()
        if state.version != self._version:
            self._follow(self._ledger.read().text)
        return state, draining

    def _follow(self, text: bytes) -> None:
        """Reads the policies that the node has now, whichever worker set them."""
        self._history = decode_history(text, READERS)
        self._version = self._history[-1].version
        self._policy = self._history[-1].policy or Single(self._chosen_from[0])

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
        if self._history[-1].policy is None:
            raise InvalidRequest(f"model {self.model} has one backend, there is nothing to choose", param="model")
        for key, problem in change.policy.problems(self._chosen_from):
            raise InvalidRequest(f"{key}: {problem}", param=key)
        for name in change.fingerprint or ():
            if name not in self.backends:
                raise InvalidRequest(f"fingerprint: model {self.model} has no backend {name}", param="fingerprint")


# The same few loads again and again: finding one takes a third of the time that making it takes.
_make_load = lru_cache(maxsize=4096)(Load)
