"""This machine's ceiling with this very client: token events per second of one process, and how late its times are.

In: how many streams, how long. Out: a Ceiling. The null backend is the benchmark's mock engine, a C program that writes
a constant chunk with the time at which it does so; client, loop, checks and figures are those of every measurement.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.answer import Answer
from loadtest.bench import native
from loadtest.bench.errors import BenchError
from loadtest.bench.http import free_ports
from loadtest.bench.mock import MODEL, IdSpace, MockEngine, Pace
from loadtest.cell import Recording, summarise
from loadtest.closed_loop import ClosedLoop
from loadtest.errors import Unreachable
from loadtest.judge import Judge
from loadtest.plan import Pair, Plan
from loadtest.sender import Sender
from loadtest.stats import Percentiles, percentiles
from loadtest.target import Target

STREAMS = 64
WINDOW_S = 3.0
PACED_EVENTS_PER_S = 20_000.0
BATCH = 8  # events in one write of a null backend that goes flat out: with one it costs about what the client does
TOKENS = 256
PROMPT_WORDS = 12
MIN_NULL_ADVANTAGE = 2.0
MIN_CLIENT_CPU = 0.7  # of a core, flat out
MIN_PACE = 0.98
STAMP = re.compile(rb'"content":"([0-9a-f]{12})')
STAMP_NS = 1 << 48  # twelve hexadecimal digits: the clock modulo three days


@dataclass(frozen=True, slots=True)
class Load:
    """What one load came to: token events as they came, against `asked_per_s`, None where as many as were read.

    `client_cpu`: share of one core. `events_per_cpu_s`: per CPU second of the client, what it would read with a core to
    itself; `null_events_per_cpu_s`: the null backend's. `lateness_s`: the client's time of an event less its stamp.
    """

    asked_per_s: float | None
    events_per_s: float
    client_cpu: float
    events_per_cpu_s: float
    null_events_per_cpu_s: float
    loop_lag_p99_s: float
    lateness_s: Percentiles | None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`flat_out`: as fast as the client reads, several events in a read. `spread`: paced, an event of one stream at a
    time. `in_step`: paced, the events of all streams at once, as an engine's step sends them.
    """

    streams: int
    window_s: float
    flat_out: Load
    spread: Load
    in_step: Load

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(_doubts(self))


async def measure_ceiling(
    streams: int = STREAMS, window_s: float = WINDOW_S, paced_per_s: float = PACED_EVENTS_PER_S
) -> Ceiling:
    """Three windows of `window_s` or a little more. Raises Unreachable where no null backend can be built or started.

    Blocks its event loop for about a second while it does that.
    """
    with null_backend() as engine:
        gauge = Gauge(engine, streams, window_s)
        return Ceiling(
            streams,
            window_s,
            flat_out=await gauge.load(None),
            spread=await gauge.load(paced_per_s, groups=streams),
            in_step=await gauge.load(paced_per_s, groups=1),
        )


def _doubts(ceiling: Ceiling) -> Iterator[str]:
    flat_out = ceiling.flat_out
    if flat_out.null_events_per_cpu_s < MIN_NULL_ADVANTAGE * flat_out.events_per_cpu_s:
        yield "The null backend costs nearly as much per event as the client: the ceiling may be the backend's."
    if flat_out.client_cpu < MIN_CLIENT_CPU:
        yield f"The client had but {flat_out.client_cpu:.0%} of a core: others use this machine; the ceiling is higher."
    for load in (ceiling.spread, ceiling.in_step):
        if load.asked_per_s and load.events_per_s < MIN_PACE * load.asked_per_s:
            yield f"Only {load.events_per_s:.0f} events/s came of the {load.asked_per_s:.0f} that were paced."


@contextmanager
def null_backend() -> Iterator[MockEngine]:
    """A server on this machine that speaks OpenAI's streams and does no work. Raises Unreachable."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        try:
            [port] = free_ports(1)
            program = native.build("mock", folder)
            engine = stack.enter_context(MockEngine(program, port, folder, IdSpace(0, 0)))
        except (BenchError, OSError) as exc:
            raise Unreachable(f"no null backend: {exc}") from exc
        yield engine


@dataclass(frozen=True, slots=True)
class Gauge:
    """Loads a null backend with cells of one size."""

    engine: MockEngine
    streams: int
    window_s: float

    async def load(self, per_s: float | None, groups: int = 1) -> Load:
        """One cell. Streams send in so many `groups`, spread evenly over the time between two of their tokens."""
        interval_us = round(1e6 * self.streams / per_s) if per_s else 0
        self.engine.set(Pace(interval_us, groups, batch=BATCH))
        sender = Sender(Target("127.0.0.1", self.engine.port), MODEL, "ceiling", 0, PROMPT_WORDS, counted=True)
        plan = Plan(mode="ceiling", tokens=TOKENS, window_s=self.window_s, window_requests=2)
        pair = Pair(self.streams, low_first=True, number=0)
        kind = StampedAnswer if per_s else Answer
        before, cpu_s = self._used(), time.process_time()
        recording = await ClosedLoop(sender, Judge(), plan, pair, "", new_answer=kind).run()
        cpu_s, used = time.process_time() - cpu_s, self._used()
        return _make_load(per_s, recording, cpu_s, (used[1] - before[1]) / (used[0] - before[0]))

    def _used(self) -> tuple[float, int]:
        """The null backend's CPU seconds, and the events that it sent."""
        return self.engine.child.cpu_s(), int(self.engine.state()["tokens"])


def _make_load(per_s: float | None, recording: Recording, cpu_s: float, null_events_per_cpu_s: float) -> Load:
    cell = summarise(recording, TOKENS)
    return Load(
        asked_per_s=per_s,
        events_per_s=cell.throughput,
        client_cpu=cell.client_cpu,
        events_per_cpu_s=sum(len(answer.times) for answer in recording.answers) / cpu_s,
        null_events_per_cpu_s=null_events_per_cpu_s,
        loop_lag_p99_s=cell.loop_lag_p99_s,
        lateness_s=percentiles(list(_lateness_s(recording))) if per_s else None,
    )


def _lateness_s(recording: Recording) -> Iterator[float]:
    for answer in recording.answers:
        if isinstance(answer, StampedAnswer):
            yield from answer.lateness_s(recording.opened_at, recording.closed_at)


@dataclass(slots=True)
class StampedAnswer(Answer):
    """Keeps what it hears: stamps are looked for when nothing is measured any more."""

    _heard: list[bytes] = field(default_factory=list, repr=False)

    def body(self, data: bytes, at: float) -> None:
        Answer.body(self, data, at)
        self._heard.append(data)

    def lateness_s(self, start: float, end: float) -> Iterator[float]:
        """Of each token in (start, end]: the client's time less the stamp. Both read the machine's monotonic clock."""
        stamps = STAMP.findall(b"".join(self._heard).removesuffix(self._rest))
        assert len(stamps) == len(self.times), "a token is not in its place"
        for at, digits in zip(self.times, stamps, strict=True):
            if start < at <= end:
                yield (round(at * 1e9) - int(digits, 16)) % STAMP_NS / 1e9
