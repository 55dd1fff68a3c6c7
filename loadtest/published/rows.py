"""One engine's sweep as rows of aggregates.

In: JSON, an object of tags with a list of rows each. Out: Sweeps. ValueError names the tag, the row and the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked


@checked(frozen=True, slots=True, config=ConfigDict(extra="ignore"))
class Row:
    """One level, fields as published: times to first token and of the wall in seconds, between tokens in ms."""

    concurrency: int
    requests: int
    wall_s: float
    throughput_tok_s: float
    out_tokens_mean: float
    requested_tokens: int
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    itl_mean_ms: float

    @property
    def e2e_p50_s(self) -> float:
        """Of an answer that takes the usual time to its first token and between tokens."""
        return self.ttft_p50_s + (self.requested_tokens - 1) * self.itl_p50_ms / 1000

    @property
    def e2e_mean_s(self) -> float:
        """By Little's law, from the throughput: whatever held the run up is in it."""
        return self.concurrency * self.out_tokens_mean / self.throughput_tok_s

    @property
    def steady_throughput(self) -> float:
        """Tokens per second if all answers took the usual time; nothing that happened once is in it."""
        return self.concurrency * self.requested_tokens / self.e2e_p50_s

    @property
    def unexplained_s(self) -> float:
        """Seconds of the wall that the run's own usual times leave open."""
        return self.wall_s - self.requests * self.e2e_p50_s / self.concurrency


@dataclass(frozen=True, slots=True)
class Sweep:
    tag: str
    rows: Sequence[Row]


SWEEPS = TypeAdapter(dict[str, list[Row]])


def parse(text: bytes) -> Mapping[str, Sweep]:
    """Sweeps by tag, rows in rising order of concurrency."""
    try:
        tables = SWEEPS.validate_json(text)
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ", ".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{place}: {first['msg']}") from exc
    return {tag: Sweep(tag, sorted(rows, key=lambda row: row.concurrency)) for tag, rows in tables.items()}
