"""Reads a few samples of a Prometheus page. In: its bytes. Out: their labels and values. Pure.

Only lines that begin with a wanted name are parsed: vLLM's page has thousands of others. To parse all of 200 kB
holds up the event loop, and every stream on it, for 150 ms; this takes 1.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MAX_COUNT = 1_000_000_000  # requests in one engine; more is a mistake
# Lines of one name. A page with more, or longer ones, is no engine's, and would hold up the loop while it is parsed.
MAX_SAMPLES = 256
MAX_LINE_BYTES = 8 * 1024


def find_labels(page: bytes, name: str) -> Iterator[Mapping[str, str]]:
    """Returns the labels of every sample of that name."""
    return (sample.labels for sample in _find_samples(page, name))


def find_values(page: bytes, name: str, **labels: str) -> list[float]:
    """Returns the values of every sample of that name that has these labels."""
    return [sample.value for sample in _find_samples(page, name) if labels.items() <= sample.labels.items()]


def sum_count(page: bytes, name: str, **labels: str) -> int | None:
    """Returns the sum of every sample that has these labels; None if there is none, or if one is no count."""
    values = find_values(page, name, **labels)
    if not values or not all(0 <= value <= MAX_COUNT for value in values):  # false for NaN too
        return None
    return round(sum(values))


def _find_samples(page: bytes, name: str) -> list[Sample]:
    """Returns the samples of that name; none if one cannot be read: a sum without it would be a wrong count."""
    lines = _find_lines(page, name.encode())
    if len(lines) > MAX_SAMPLES or any(len(line) > MAX_LINE_BYTES for line in lines):
        return []
    try:
        families = list(text_string_to_metric_families(b"\n".join(lines).decode()))
    except ValueError:
        return []
    return [sample for family in families for sample in family.samples if sample.name == name]


def _find_lines(page: bytes, start: bytes) -> list[bytes]:
    """Returns the lines that begin with `start`, up to one more than MAX_SAMPLES."""
    page, start = b"\n" + page, b"\n" + start
    lines: list[bytes] = []
    at = page.find(start)
    while at >= 0 and len(lines) <= MAX_SAMPLES:
        end = page.find(b"\n", at + 1)
        lines.append(page[at + 1 : end if end >= 0 else None].rstrip(b"\r"))
        at = page.find(start, at + 1)
    return lines
