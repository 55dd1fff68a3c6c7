"""Gauges read from routing whenever Prometheus scrapes, so that they cannot drift from the ledger.

In: routing's state, by the protocols below. Out: metric families. Keeps nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.core import Policy


class BackendReading(Protocol):
    @property
    def in_flight(self) -> int: ...
    @property
    def steering(self) -> int: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def is_ejected(self) -> bool: ...
    @property
    def readings(self) -> Mapping[str, float]: ...


class PolicyReading(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def policy(self) -> Policy | None: ...


class DryReading(Protocol):
    @property
    def switches(self) -> int: ...
    @property
    def choices(self) -> Mapping[tuple[str, str], int]: ...


class ModelReading(Protocol):
    """The values that a scrape reads of one model; routing's ModelState has all of them."""

    @property
    def model(self) -> str: ...
    @property
    def backends(self) -> Mapping[str, BackendReading]: ...
    @property
    def side(self) -> str: ...
    @property
    def switches(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def current(self) -> PolicyReading: ...
    @property
    def dry(self) -> DryReading | None: ...


class RoutingCollector(Collector):
    def __init__(self, read_routing: Callable[[], Sequence[ModelReading]]) -> None:
        self._read_routing = read_routing

    def collect(self) -> Iterator[Metric]:
        models = self._read_routing()
        yield from _backend_gauges(models)
        yield from _policy_gauges(models)
        yield from _dry_counters(models)


def _backend_gauges(models: Sequence[ModelReading]) -> Iterator[Metric]:
    in_flight = GaugeMetricFamily("crossover_in_flight", "Generations held now", labels=["model", "backend"])
    steering = GaugeMetricFamily(
        "crossover_steering_in_flight", "Those the policy decides by", labels=["model", "backend"]
    )
    ready = GaugeMetricFamily("crossover_backend_ready", "1 if the backend may be chosen", labels=["model", "backend"])
    ejected = GaugeMetricFamily(
        "crossover_backend_ejected", "1 if most requests failed there", labels=["model", "backend"]
    )
    side = GaugeMetricFamily(
        "crossover_policy_side", "1 for the backend the policy stands on", labels=["model", "backend"]
    )
    readings: dict[str, GaugeMetricFamily] = {}
    for model in models:
        for name, backend in model.backends.items():
            labels = (model.model, name)
            in_flight.add_metric(labels, backend.in_flight)
            steering.add_metric(labels, backend.steering)
            ready.add_metric(labels, backend.is_ready)
            ejected.add_metric(labels, backend.is_ejected)
            side.add_metric(labels, name == model.side)
            for key, value in backend.readings.items():
                readings.setdefault(key, _reading_gauge(key)).add_metric(labels, value)
    return iter((in_flight, steering, ready, ejected, side, *readings.values()))


def _policy_gauges(models: Sequence[ModelReading]) -> Iterator[Metric]:
    keys: dict[str, GaugeMetricFamily] = {}
    version = GaugeMetricFamily("crossover_policy_version", "Version of the policy in force", labels=["model"])
    switches = CounterMetricFamily("crossover_policy_switches", "Changes of side", labels=["model"])
    waiting = GaugeMetricFamily("crossover_waiting", "Requests that wait for an engine", labels=["model"])
    for model in models:
        waiting.add_metric([model.model], model.waiting)
        version.add_metric([model.model], model.current.version)
        switches.add_metric([model.model], model.switches)
        policy = model.current.policy
        for key, value in ({} if policy is None else policy.gauges()).items():
            keys.setdefault(key, _key_gauge(key)).add_metric([model.model], value)
    return iter((*keys.values(), version, switches, waiting))


def _dry_counters(models: Sequence[ModelReading]) -> Iterator[Metric]:
    choices = CounterMetricFamily(
        "crossover_dry_choices",
        "Requests by their backend, and by where the policy on trial would have sent them",
        labels=["model", "backend", "dry"],
    )
    switches = CounterMetricFamily("crossover_dry_switches", "Changes of side of the policy on trial", labels=["model"])
    for model in models:
        if model.dry is not None:
            switches.add_metric([model.model], model.dry.switches)
            for (taken, chosen), count in model.dry.choices.items():
                choices.add_metric([model.model, taken, chosen], count)
    return iter((choices, switches))


def _reading_gauge(key: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        f"crossover_policy_{key}", f"What the policy has found of the backend: {key}", labels=["model", "backend"]
    )


def _key_gauge(key: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"crossover_policy_{key}", f"The key {key} of the policy in force", labels=["model"])
