"""The few samples wanted of a Prometheus page. In: its bytes. Out: their labels and values. Pure.

Only lines that begin with a wanted name are parsed: vLLM's page has thousands of others. Parsing 200 kB whole holds up
the event loop, and every stream on it, for 150 ms; so it takes 1.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MAX_COUNT = 1_000_000_000  # requests in one engine; more is a mistake


def find_labels(page: bytes, name: str) -> Iterator[Mapping[str, str]]:
    """The labels of every sample of that name."""
    return (sample.labels for sample in _find_samples(page, name))


def sum_count(page: bytes, name: str, **labels: str) -> int | None:
    """The sum of every sample that has these labels; None if there is none, or one that is no count."""
    values = [sample.value for sample in _find_samples(page, name) if labels.items() <= sample.labels.items()]
    if not values or not all(0 <= value <= MAX_COUNT for value in values):  # false for NaN too
        return None
    return round(sum(values))


def _find_samples(page: bytes, name: str) -> list[Sample]:
    """None of them if one cannot be read: a sum with a part missing would be a wrong count."""
    lines = [line for line in page.splitlines() if line.startswith(name.encode())]
    try:
        families = list(text_string_to_metric_families(b"\n".join(lines).decode()))
    except ValueError:
        return []
    return [sample for family in families for sample in family.samples if sample.name == name]
