"""The gateway's own Prometheus registry: counters and latency histograms, users' apart from load-test runs'.

In: observations when they end, refusals, routing's state at each scrape. Out: the exposition text.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from gateway.core import FinishReason, GenerateRequest, Placeable, RelayOutcome, Route, Sink
from gateway.errors import GatewayError
from gateway.metrics.gauges import ModelReading, RoutingCollector
from gateway.metrics.observation import Observation, Timing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # what generate_latest writes unless asked otherwise

TTFT_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
TPOT_BUCKETS_S = (0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)
E2E_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300)

LABELS = ("model", "backend")
FINISHED = frozenset(reason.value for reason in FinishReason)


class Metrics:
    """One gateway's registry. `read_routing` is called at every scrape."""

    def __init__(
        self, read_routing: Callable[[], Sequence[ModelReading]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.clock = clock
        self._registry = registry = CollectorRegistry()
        registry.register(RoutingCollector(read_routing))
        ProcessCollector(registry=registry)
        Gauge("crossover_tasks", "Tasks alive on the event loop", registry=registry).set_function(_count_tasks)
        self._users = _Traffic(registry, "crossover", "users'")
        self._runs = _Traffic(registry, "crossover_run", "load-test runs'")
        self._latencies = _Latencies(registry)
        self._refused = Counter("crossover_refused", "Requests refused before any backend", ["code"], registry=registry)

    def observe(self, request: GenerateRequest, route: Route, sink: Sink, arrived: float | None = None) -> Observation:
        """A sink in front of `sink` that counts and times one attempt on one backend.

        `arrived`: when the request came in, on this object's `clock`; now, if not given. Latencies start there.
        """
        started = self.clock() if arrived is None else arrived
        labels = (request.model, route.backend)

        def record(timing: Timing, outcome: str) -> None:
            self._record(request, labels, timing, outcome)

        return Observation(sink, Timing(started), self.clock, record)

    def relayed(self, request: Placeable, route: Route, arrived: float, seen: RelayOutcome, outcome: str) -> None:
        """Count one attempt on the relay lane, at its end; `arrived` is on this object's clock."""
        labels = (request.model, route.backend)
        timing = Timing(arrived)
        timing.first, timing.last = seen.first, seen.last
        prompt_tokens, timing.tokens = seen.usage
        (self._users if request.run is None else self._runs).count(labels, outcome, prompt_tokens, timing.tokens)
        if request.run is None:
            self._latencies.observe(labels, timing, outcome)

    def refuse(self, error: GatewayError) -> None:
        """Count a request that ended before it had a backend; labelled by the error's code, so the labels are few."""
        self._refused.labels(error.code).inc()

    def render(self) -> bytes:
        """The exposition text, as CONTENT_TYPE."""
        return generate_latest(self._registry)

    def _record(self, request: GenerateRequest, labels: tuple[str, str], timing: Timing, outcome: str) -> None:
        traffic = self._runs if request.run is not None else self._users
        traffic.count(labels, outcome, len(request.prompt), timing.tokens)
        if request.run is None:  # a calibration's latencies say nothing about what users get
            self._latencies.observe(labels, timing, outcome)


def _count_tasks() -> int:
    """A leak detector: at rest it returns to the same figure. 0 when read outside an event loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


class _Traffic:
    """Requests and tokens of one kind of traffic. Users' and runs' are apart by name, so that no sum mixes them."""

    def __init__(self, registry: CollectorRegistry, prefix: str, whose: str) -> None:
        self._requests = Counter(
            f"{prefix}_requests",
            f"{whose} requests by backend and outcome: finish reason, error code or cancelled; one per attempt",
            [*LABELS, "outcome"],
            registry=registry,
        )
        self._prompt = Counter(
            f"{prefix}_prompt_tokens", f"Prompt tokens of {whose} requests", LABELS, registry=registry
        )
        self._completion = Counter(
            f"{prefix}_completion_tokens", f"Tokens generated for {whose} requests", LABELS, registry=registry
        )

    def count(self, labels: tuple[str, str], outcome: str, prompt_tokens: int, completion_tokens: int) -> None:
        self._requests.labels(*labels, outcome).inc()
        self._prompt.labels(*labels).inc(prompt_tokens)
        self._completion.labels(*labels).inc(completion_tokens)


class _Latencies:
    """Users' latencies in seconds: TTFT of all that began to answer, TPOT and E2E of those that came to their end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, meaning: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, meaning, LABELS, buckets=buckets, registry=registry)

        self._ttft = histogram("crossover_ttft_seconds", "Arrival to first token", TTFT_BUCKETS_S)
        self._tpot = histogram("crossover_tpot_seconds", "Mean time per token after the first", TPOT_BUCKETS_S)
        self._e2e = histogram("crossover_e2e_seconds", "Arrival to last token", E2E_BUCKETS_S)

    def observe(self, labels: tuple[str, str], timing: Timing, outcome: str) -> None:
        if timing.first is None:
            return
        self._ttft.labels(*labels).observe(timing.first - timing.started)
        if outcome not in FINISHED:
            return
        self._e2e.labels(*labels).observe(timing.last - timing.started)
        if timing.tokens > 1:
            self._tpot.labels(*labels).observe((timing.last - timing.first) / (timing.tokens - 1))
