"""The latest as Prometheus sees it."""

from prometheus_client import CollectorRegistry, generate_latest

from gateway.evidence import Evidence, EvidenceCollector, LatestEvidence, Place
from gateway.evidence.fingerprint import Fingerprint
from gateway.shared import Seat

TRITON, VLLM, OTHER = Place("m", "triton"), Place("m", "vllm"), Place("other", "vllm")


def scrape(latest: LatestEvidence, fingerprints: dict[str, Fingerprint | None]) -> set[str]:
    registry = CollectorRegistry()
    registry.register(EvidenceCollector(latest, fingerprints.__getitem__))
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def test_what_is_unknown_has_no_sample() -> None:
    latest = LatestEvidence([TRITON, VLLM], Seat.alone())
    assert scrape(latest, {"m": None}) == {'crossover_policy_stale{model="m"} 0.0'}
    latest.publish(VLLM, Evidence(in_flight=12, drift=-3))
    latest.publish(TRITON, Evidence(in_flight=0, drift=0))
    assert scrape(latest, {"m": None}) == {
        'crossover_engine_in_flight{backend="vllm",model="m"} 12.0',
        'crossover_engine_in_flight{backend="triton",model="m"} 0.0',
        'crossover_drift{backend="vllm",model="m"} -3.0',
        'crossover_drift{backend="triton",model="m"} 0.0',
        'crossover_policy_stale{model="m"} 0.0',
    }


def test_each_model_is_stale_by_its_own_policy() -> None:
    latest = LatestEvidence([VLLM, OTHER], Seat.alone())
    latest.publish(VLLM, Evidence({"version": "2"}))
    latest.publish(OTHER, Evidence({"version": "2"}))
    fingerprints: dict[str, Fingerprint | None] = {"m": {"vllm": {"version": "1"}}, "other": {"vllm": {"version": "2"}}}
    assert scrape(latest, fingerprints) == {
        'crossover_policy_stale{model="m"} 1.0',
        'crossover_policy_stale{model="other"} 0.0',
    }
