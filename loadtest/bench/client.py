"""The load client: a Load into its command line, the JSON it prints into a Measurement."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import orjson

from loadtest.bench.errors import BenchError
from loadtest.bench.mock import MODEL
from loadtest.bench.processes import pinned_to

Wire = Literal["text", "ids"]

GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the client asks for. `is_whole`: answers that are not streamed, in a closed loop of `streams` in flight."""

    streams: int
    tokens: int = 2000
    is_whole: bool = False
    ramp_s: float = 0.1
    warm_s: float = 1.0
    window_s: float = 3.0
    drain_s: float = 0.0
    probe_ms: int = 0
    intruder_ms: int = 0

    @property
    def longest_s(self) -> float:
        return self.ramp_s + self.warm_s + self.window_s + self.drain_s

    def arguments(self) -> list[str]:
        values = {
            "--streams": self.streams,
            "--tokens": self.tokens,
            "--ramp": self.ramp_s,
            "--warm": self.warm_s,
            "--window": self.window_s,
            "--drain": self.drain_s,
            "--probe-ms": self.probe_ms,
            "--intruder-ms": self.intruder_ms,
        }
        named = [text for name, value in values.items() for text in (name, str(value))]
        return [*named, "--whole"] if self.is_whole else named


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom the client talks to, and whose processes it looks at."""

    port: int
    wire: Wire = "text"
    stop: str | None = None
    pids: Sequence[int] = ()
    mock_pids: Sequence[int] = ()
    acks: Path | None = None
    cpus: Sequence[int] = ()
    intruder: Path | None = None

    def arguments(self) -> list[str]:
        values = {
            "--port": str(self.port),
            "--wire": self.wire,
            "--model": MODEL,
            "--stop": self.stop,
            "--processes": ",".join(map(str, self.pids)),
            "--mock": ",".join(map(str, self.mock_pids)),
            "--cpus": ",".join(map(str, self.cpus)),
            "--acks": str(self.acks) if self.acks else None,
            "--intruder": str(self.intruder) if self.intruder else None,
        }
        return [text for name, value in values.items() if value for text in (name, value)]


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

    @classmethod
    def parse(cls, text: bytes | str) -> "Measurement":
        """From the client's output. ValueError if it is something else."""
        return cls.from_json(orjson.loads(text))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Measurement":  # Any: JSON
        known = {each.name for each in fields(cls)}
        plain = {name: value for name, value in values.items() if name in known}
        for name in plain.keys() & {"latency_us", "ttft_us", "delay_us", "gap_us", "lag_us"}:
            plain[name] = Spread(**plain[name])
        try:
            return cls(**plain)
        except TypeError as exc:
            raise ValueError(f"not a measurement: {exc}") from exc

    @property
    def complaint(self) -> str | None:
        """Why the figures must not be used; None if they may."""
        wrong = {
            "errors": self.errors,
            "streams cut short": self.unfinished,
            "malformed tokens": self.malformed,
            "tokens of other streams": self.foreign,
            "tokens lost": self.lost,
            "tokens out of order": self.reordered,
        }
        found = [f"{count} {what}" for what, count in wrong.items() if count]
        if self.first_error:
            found.append(self.first_error)
        if not self.requests and not self.tokens:
            found.append("nothing was answered")
        return "; ".join(found) or None


def run_client(program: Path, subject: Subject, load: Load, cpus: Sequence[int] = ()) -> Measurement:
    """Returns when the load is over. Raises BenchError if the client does not come to an end of its own."""
    argv = [*pinned_to(cpus), str(program), *subject.arguments(), *load.arguments()]
    try:
        done = subprocess.run(argv, capture_output=True, check=True, timeout=load.longest_s + GRACE_S)
        return Measurement.parse(done.stdout)
    except subprocess.CalledProcessError as exc:
        raise BenchError(f"the load client ended with {exc.returncode}: {exc.stderr.decode()[-500:]}") from exc
    except (subprocess.TimeoutExpired, ValueError) as exc:
        raise BenchError(f"the load client gave no result: {exc}") from exc
