"""Sweeps that others published: rows of aggregates, and the faults that they show. Pure.

In: JSON, an object of tags with a list of rows each. Out: Sweeps. ValueError names the tag, the row and the field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from loadtest.results.percentiles import P90_SAMPLES, P99_SAMPLES

MIN_FILL = 0.97


@checked(frozen=True, slots=True, config=ConfigDict(extra="ignore"))
class Row:
    """One level, with the fields as published: TTFT and the wall time in seconds, ITL in ms."""

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
        """The seconds of an answer with the median time to its first token and the median time between tokens."""
        return self.ttft_p50_s + (self.requested_tokens - 1) * self.itl_p50_ms / 1000

    @property
    def e2e_mean_s(self) -> float:
        """The mean seconds of an answer by Little's law, from the throughput: they include every pause of the run."""
        return self.concurrency * self.out_tokens_mean / self.throughput_tok_s

    @property
    def steady_throughput(self) -> float:
        """Tokens per second if all answers took `e2e_p50_s`: leaves out what happened once."""
        return self.concurrency * self.requested_tokens / self.e2e_p50_s

    @property
    def unexplained_s(self) -> float:
        """Seconds of the wall that requests of `e2e_p50_s` do not account for."""
        return self.wall_s - self.requests * self.e2e_p50_s / self.concurrency


@dataclass(frozen=True, slots=True)
class Sweep:
    tag: str
    rows: Sequence[Row]


_SWEEPS = TypeAdapter(dict[str, list[Row]])


def parse(text: bytes) -> Mapping[str, Sweep]:
    """Returns sweeps by tag, with rows in rising order of concurrency."""
    try:
        tables = _SWEEPS.validate_json(text)
    except ValidationError as exc:
        first = exc.errors()[0]
        place = ", ".join(map(str, first["loc"])) or "the file"
        raise ValueError(f"{place}: {first['msg']}") from exc
    return {tag: Sweep(tag, sorted(rows, key=lambda row: row.concurrency)) for tag, rows in tables.items()}


def find_faults(sweep: Sweep) -> Iterator[str]:
    """Yields what the sweep's own figures show to be wrong with it, a sentence each."""
    for row in sweep.rows:
        name = f"{sweep.tag} c={row.concurrency}"
        if row.out_tokens_mean != row.requested_tokens:
            yield (
                f"UNEQUAL WORK: {name} returned {row.out_tokens_mean} of {row.requested_tokens} tokens on average: it "
                "stopped early, or chunks were counted as tokens."
            )
        if (fill := row.throughput_tok_s / row.steady_throughput) < MIN_FILL:
            cause = "a cold first request" if row.concurrency == 1 else "a pause, or start and drain inside the window"
            yield (
                f"NOT STEADY: {name}: {row.unexplained_s:.2f} s of {row.wall_s:.1f} s are not its own request times "
                f"(fill {fill:.2f}): {cause}; its throughput is too low by as much."
            )
        if row.requests < P99_SAMPLES:
            missing = "p99" if row.requests >= P90_SAMPLES else "p90 and p99"
            yield f"{missing} n/a: {name} has {row.requests} requests, p99 needs {P99_SAMPLES}."
