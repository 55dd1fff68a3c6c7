"""Gauges read from routing whenever Prometheus scrapes, so that they cannot drift from the ledger.

In: routing's state. Out: metric families. Keeps nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.routing import ModelState

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]  # labels and values

BACKEND = ("model", "backend")
OF_BACKENDS = (  # fields of a BackendState
    ("in_flight", "crossover_in_flight", "Generations held now"),
    ("steering", "crossover_steering_in_flight", "Those the policy decides by"),
    ("is_ready", "crossover_backend_ready", "1 if the backend may be chosen"),
    ("is_ejected", "crossover_backend_ejected", "1 if most requests failed there"),
)


class RoutingCollector(Collector):
    def __init__(self, read_routing: Callable[[], Sequence[ModelState]]) -> None:
        self._read_routing = read_routing

    def collect(self) -> Iterator[Metric]:
        models = self._read_routing()
        yield from _backend_gauges(models)
        yield from _policy_gauges(models)
        yield from _dry_counters(models)


def _backend_gauges(models: Sequence[ModelState]) -> Iterator[Metric]:
    backends = {(model.model, name): backend for model in models for name, backend in model.backends.items()}
    for field, name, meaning in OF_BACKENDS:
        yield _gauge(name, meaning, BACKEND, ((labels, getattr(each, field)) for labels, each in backends.items()))
    sides = {model.model: model.side for model in models}
    on_side = ((labels, labels[1] == sides[labels[0]]) for labels in backends)
    yield _gauge("crossover_policy_side", "1 for the backend the policy stands on", BACKEND, on_side)
    for key, samples in _by_key((labels, backend.readings) for labels, backend in backends.items()):
        meaning = f"What the policy has found of the backend: {key}"
        yield _gauge(f"crossover_policy_{key}", meaning, BACKEND, samples)


def _policy_gauges(models: Sequence[ModelState]) -> Iterator[Metric]:
    policies = [([model.model], model.current.policy) for model in models]
    for key, samples in _by_key((labels, policy.gauges()) for labels, policy in policies if policy is not None):
        yield _gauge(f"crossover_policy_{key}", f"The key {key} of the policy in force", ["model"], samples)
    versions = (([model.model], model.current.version) for model in models)
    yield _gauge("crossover_policy_version", "Version of the policy in force", ["model"], versions)
    switches = CounterMetricFamily("crossover_policy_switches", "Changes of side", labels=["model"])
    for model in models:
        switches.add_metric([model.model], model.switches)
    yield switches
    waiting = (([model.model], model.waiting) for model in models)
    yield _gauge("crossover_waiting", "Requests that wait for an engine", ["model"], waiting)


def _dry_counters(models: Sequence[ModelState]) -> Iterator[Metric]:
    meaning = "Requests by their backend, and by where the policy on trial would have sent them"
    choices = CounterMetricFamily("crossover_dry_choices", meaning, labels=["model", "backend", "dry"])
    switches = CounterMetricFamily("crossover_dry_switches", "Changes of side of the policy on trial", labels=["model"])
    for model in models:
        if model.dry is not None:
            switches.add_metric([model.model], model.dry.switches)
            for (taken, chosen), count in model.dry.choices.items():
                choices.add_metric([model.model, taken, chosen], count)
    yield from (choices, switches)


def _gauge(name: str, meaning: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _by_key(figures: Iterable[tuple[Sequence[str], Mapping[str, float]]]) -> Iterable[tuple[str, Samples]]:
    """Returns the samples of each figure that any policy has."""
    found: dict[str, list[tuple[Sequence[str], float]]] = {}
    for labels, values in figures:
        for key, value in values.items():
            found.setdefault(key, []).append((labels, value))
    return found.items()
