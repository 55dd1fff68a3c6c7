"""The engines' own figures for Prometheus, read at each scrape by whichever worker is scraped.

In: the latest evidence, and the fingerprint of each model's policy. Out: metric families, without samples of unknowns.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.evidence.fingerprint import Fingerprint
from gateway.evidence.latest import LatestEvidence


class EvidenceCollector(Collector):
    def __init__(self, latest: LatestEvidence, read_fingerprint: Callable[[str], Fingerprint | None]) -> None:
        self._latest = latest
        self._read_fingerprint = read_fingerprint

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "backend"]
        in_flight = GaugeMetricFamily(
            "crossover_engine_in_flight", "Requests the engine reports that it holds", labels=labels
        )
        drift = GaugeMetricFamily("crossover_drift", "Requests the engine holds beyond those sent", labels=labels)
        for place in self._latest.places:
            evidence = self._latest.read(place)
            if evidence.in_flight is not None:
                in_flight.add_metric(place, evidence.in_flight)
            if evidence.drift is not None:
                drift.add_metric(place, evidence.drift)
        stale = GaugeMetricFamily(
            "crossover_policy_stale", "1 if the policy was measured on other engines", labels=["model"]
        )
        for model in dict.fromkeys(place.model for place in self._latest.places):
            stale.add_metric([model], bool(self._latest.find_changes(model, self._read_fingerprint(model))))
        yield from (in_flight, drift, stale)
