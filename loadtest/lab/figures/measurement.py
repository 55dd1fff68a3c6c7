"""One measurement of the benchmark, and a record of its circumstances: JSON in and out."""

import os
import time
from dataclasses import dataclass, field

import orjson
from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of `count` samples, in microseconds; all 0 where there are none."""

    count: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One window of one system. Counts from `errors` to `reordered` are of the whole run and have to be 0."""

    window_s: float
    requests: int
    tokens: int
    reads: int
    errors: int
    unfinished: int
    malformed: int
    foreign: int
    lost: int
    reordered: int
    first_error: str
    cpu_s: float
    mock_cpu_s: float
    client_cpu_s: float
    idle_rss_kib: float
    peak_rss_kib: float
    reconnects: int = 0
    streams_ended: int = 0
    all_tokens: int = 0
    intrusions: int = 0
    other_cpu_s: float = 0.0
    latency_us: Spread = field(default_factory=Spread)
    ttft_us: Spread = field(default_factory=Spread)
    delay_us: Spread = field(default_factory=Spread)
    gap_us: Spread = field(default_factory=Spread)
    lag_us: Spread = field(default_factory=Spread)

    @property
    def complaint(self) -> str | None:
        """Why the figures must not be used; None if they may."""
        counts = {
            "errors": self.errors,
            "streams cut short": self.unfinished,
            "malformed tokens": self.malformed,
            "tokens of other streams": self.foreign,
            "tokens lost": self.lost,
            "tokens out of order": self.reordered,
        }
        found = [f"{count} {what}" for what, count in counts.items() if count]
        if self.first_error:
            found.append(self.first_error)
        if not self.requests and not self.tokens:
            found.append("nothing was answered")
        return "; ".join(found) or None


@dataclass(frozen=True, slots=True)
class Record:
    """One line of results.jsonl. `complaint`: why it does not count. `extra`: figures that only this scenario has."""

    scenario: str
    system: str
    repeat: int
    complaint: str | None
    measurement: Measurement | None = None
    extra: dict[str, float] = field(default_factory=dict)
    at: float = field(default_factory=time.time)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])

    def to_line(self) -> bytes:
        return orjson.dumps(self) + b"\n"


_MEASUREMENTS, _RECORDS = TypeAdapter(Measurement), TypeAdapter(Record)


def parse_measurement(text: bytes | str) -> Measurement:
    """Parses the load client's output. Raises ValueError."""
    return _MEASUREMENTS.validate_json(text)


def parse_record(line: bytes) -> Record:
    """Parses a line of Record.to_line. Raises ValueError."""
    return _RECORDS.validate_json(line)
