"""What engines say of themselves, for Prometheus: read from the board at each scrape, by whichever worker is scraped.

In: the board, and the fingerprint of each model's policy. Out: metric families, without samples for what is unknown.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.evidence.board import Board
from gateway.evidence.fingerprint import Fingerprint


class EvidenceCollector(Collector):
    def __init__(self, board: Board, read_fingerprint: Callable[[str], Fingerprint | None]) -> None:
        self._board = board
        self._read_fingerprint = read_fingerprint

    def collect(self) -> Iterator[Metric]:
        labels = ["model", "backend"]
        in_flight = GaugeMetricFamily("crossover_engine_in_flight", "Requests the engine says it holds", labels=labels)
        drift = GaugeMetricFamily("crossover_drift", "Requests the engine holds beyond those sent", labels=labels)
        for place in self._board.places:
            evidence = self._board.read(place)
            if evidence.in_flight is not None:
                in_flight.add_metric(place, evidence.in_flight)
            if evidence.drift is not None:
                drift.add_metric(place, evidence.drift)
        stale = GaugeMetricFamily(
            "crossover_policy_stale", "1 if the policy was measured on other engines", labels=["model"]
        )
        for model in dict.fromkeys(place.model for place in self._board.places):
            stale.add_metric([model], bool(self._board.find_changes(model, self._read_fingerprint(model))))
        yield from (in_flight, drift, stale)

    def describe(self) -> Iterator[Metric]:
        """Empty: names are this module's own, the registry need not collect to learn them."""
        return iter(())
