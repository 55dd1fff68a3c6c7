"""The node's traffic as Prometheus families, summed over all workers at each scrape. Keeps nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.metrics.tally import (
    COMPLETION,
    EVENTS,
    MOVED_TOKENS,
    MOVES,
    OUTCOMES,
    PROMPT,
    REFUSED,
    Histogram,
    Pair,
    Tally,
)

Label: TypeAlias = tuple[str, str]

LABELS = ("model", "backend")
AMOUNTS = (
    (PROMPT, "prompt_tokens", "Prompt tokens of {whose} requests"),
    (COMPLETION, "completion_tokens", "Tokens generated for {whose} requests"),
    (EVENTS, "relay_events", "Server-sent events passed on to {whose} requests on the relay lane"),
    (MOVES, "moves", "Generations for {whose} requests that came here from another backend"),
    (MOVED_TOKENS, "moved_tokens", "Tokens that those had before, prefilled again"),
)
ALWAYS = frozenset({PROMPT, COMPLETION})  # shown for every backend that answered, at 0 too
HISTOGRAMS: Sequence[tuple[str, str, Callable[[Pair], Histogram]]] = (
    ("crossover_ttft_seconds", "Arrival to first token", lambda pair: pair.ttft),
    ("crossover_tpot_seconds", "Mean time per token after the first", lambda pair: pair.tpot),
    ("crossover_e2e_seconds", "Arrival to last token", lambda pair: pair.e2e),
)


class TrafficCollector(Collector):
    """Users' and runs' traffic have different names, so that no sum mixes them. What never happened has no sample."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        pairs = self._tally.pairs
        yield from self._traffic("crossover", "users'", {label: pair.users for label, pair in pairs.items()})
        yield from self._traffic(
            "crossover_run", "load-test runs'", {label: pair.runs for label, pair in pairs.items()}
        )
        for name, meaning, find in HISTOGRAMS:
            yield self._histogram(name, meaning, {label: find(pair) for label, pair in pairs.items()})
        refused = CounterMetricFamily("crossover_refused", "Requests refused before any backend", labels=["code"])
        for code, count in self._tally.by_name(REFUSED):
            refused.add_metric([code], count)
        yield refused

    def _traffic(self, prefix: str, whose: str, starts: Mapping[Label, int]) -> Iterator[Metric]:
        meaning = f"{whose} requests by backend and outcome: finish reason, error code or cancelled; one per attempt"
        requests = CounterMetricFamily(f"{prefix}_requests", meaning, labels=[*LABELS, "outcome"])
        tokens = {
            word: CounterMetricFamily(f"{prefix}_{name}", meaning.format(whose=whose), labels=LABELS)
            for word, name, meaning in AMOUNTS
        }
        for label, start in starts.items():
            outcomes = list(self._tally.by_name(start + OUTCOMES))
            for outcome, count in outcomes:
                requests.add_metric([*label, outcome], count)
            for word, family in tokens.items():
                amount = self._tally.total(start + word)
                if amount or (outcomes and word in ALWAYS):
                    family.add_metric(label, amount)
        yield from (requests, *tokens.values())

    def _histogram(self, name: str, meaning: str, histograms: Mapping[Label, Histogram]) -> Metric:
        family = HistogramMetricFamily(name, meaning, labels=LABELS)
        for label, histogram in histograms.items():
            buckets = self._tally.buckets(histogram)
            if buckets[-1][1]:
                named = [(_name(bound), count) for bound, count in buckets]
                family.add_metric(label, named, self._tally.seconds(histogram))
        return family


def _name(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
