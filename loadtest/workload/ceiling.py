"""The ceiling of this client on this machine: token events per second of one process, and how late its times are.

In: how many streams, how long. Out: a Ceiling. The null backend is the mock engine, a C program that writes a constant
chunk with the time at which it does so. Client, loop, checks and figures are those of every measurement.
"""

import itertools
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import Unreachable
from loadtest.client.recording import Recording
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.target import Target
from loadtest.client.window import WindowRule
from loadtest.mock_engine.build import MOCK, build
from loadtest.mock_engine.engine import MODEL, IdSpace, MockEngine, Pace, mock_engine
from loadtest.mock_engine.process import CannotMeasure
from loadtest.results.cell import Pair, summarise
from loadtest.results.percentiles import Percentiles, percentiles

STREAMS = 64
WINDOW_S = 3.0
PACED_EVENTS_PER_S = 20_000.0
BATCH = 8  # events in one write of the null backend flat out: with one it costs about as much as the client
TOKENS = 256
PROMPT_WORDS = 12
MIN_NULL_ADVANTAGE = 2.0
MIN_CLIENT_CPU = 0.7  # of a core, flat out
MIN_PACE = 0.98
STAMP = re.compile(rb'"content":"([0-9a-f]{12})')
STAMP_NS = 1 << 48  # twelve hexadecimal digits: the clock modulo three days


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one load. `asked_per_s`: token events that the null backend had to send; None: as many as are
    read.

    `client_cpu`: share of one core. `events_per_cpu_s`: per CPU second of the client, its rate with a core to itself;
    `null_events_per_cpu_s`: that of the null backend. `lateness_s`: the client's time of an event less its stamp.
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
    """The loads' figures. `flat_out`: as fast as the client reads, several events in a read. `spread`: paced, the event
    of one stream at a time. `in_step`: paced, the events of all streams at once, as an engine's step sends them.
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
    """Measures in three windows of `window_s` or more. Raises Unreachable where no null backend can be started.

    Building and starting it blocks the event loop for about a second.
    """
    with null_backend() as engine:
        meter = CeilingMeter(engine, streams, window_s)
        return Ceiling(
            streams,
            window_s,
            flat_out=await meter.load(None),
            spread=await meter.load(paced_per_s, groups=streams),
            in_step=await meter.load(paced_per_s, groups=1),
        )


def _doubts(ceiling: Ceiling) -> Iterator[str]:
    flat_out = ceiling.flat_out
    if flat_out.null_events_per_cpu_s < MIN_NULL_ADVANTAGE * flat_out.events_per_cpu_s:
        yield "The null backend costs nearly as much per event as the client: the ceiling may be the backend's."
    if flat_out.client_cpu < MIN_CLIENT_CPU:
        share = f"{flat_out.client_cpu:.0%} of a core"
        yield f"The client had only {share}: others use this machine, and the ceiling is higher."
    for load in (ceiling.spread, ceiling.in_step):
        if load.asked_per_s and load.events_per_s < MIN_PACE * load.asked_per_s:
            yield f"Only {load.events_per_s:.0f} events/s came of the {load.asked_per_s:.0f} that were paced."


@contextmanager
def null_backend() -> Iterator[MockEngine]:
    """Starts a server on this machine that streams chat completions and does no other work. Raises Unreachable."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        try:
            engine = stack.enter_context(mock_engine(build(MOCK, Path(name)), Path(name), IdSpace(0, 0)))
        except (CannotMeasure, OSError) as exc:
            raise Unreachable(f"no null backend: {exc}") from exc
        yield engine


@dataclass(frozen=True, slots=True)
class CeilingMeter:
    """Loads a null backend with cells of one size."""

    engine: MockEngine
    streams: int
    window_s: float

    async def load(self, per_s: float | None, groups: int = 1) -> Load:
        """Measures a cell. The streams send in `groups`, spread evenly over the time between two tokens of a stream."""
        interval_us = round(1e6 * self.streams / per_s) if per_s else 0
        self.engine.set(Pace(interval_us, groups, batch=BATCH))
        target = Target("127.0.0.1", self.engine.port)
        sender = Sender(target, MODEL, "ceiling", 0, PROMPT_WORDS, wants_counts=True)
        rule = WindowRule(settle_requests=1, min_requests=2, min_s=self.window_s)
        loop = ClosedLoop(sender, AnswerGate(), ClosedLoad("", self.streams, TOKENS, rule))
        loop.new_answer = StampedAnswer if per_s else StreamedAnswer
        before = self._read_usage()
        recording = await loop.run()
        null_cpu_s, null_events, cpu_s = (now - then for now, then in zip(self._read_usage(), before, strict=True))
        late = (answer.lateness_s(recording) for answer in recording.answers if isinstance(answer, StampedAnswer))
        cell = summarise(recording, "", Pair(self.streams, low_first=True), TOKENS)
        return Load(
            asked_per_s=per_s,
            events_per_s=cell.throughput,
            client_cpu=cell.client_cpu,
            events_per_cpu_s=sum(len(answer.times) for answer in recording.answers) / cpu_s,
            null_events_per_cpu_s=null_events / null_cpu_s,
            loop_lag_p99_s=cell.loop_lag_p99_s,
            lateness_s=percentiles(itertools.chain.from_iterable(late)) if per_s else None,
        )

    def _read_usage(self) -> tuple[float, float, float]:
        """Reads CPU seconds of the null backend, the events that it sent, CPU seconds of this process."""
        return self.engine.child.cpu_s(), self.engine.state()["tokens"], time.process_time()


@dataclass(slots=True)
class StampedAnswer(StreamedAnswer):
    """Keeps all bytes: the stamps are searched for when the measurement is over."""

    _received: list[bytes] = field(default_factory=list, repr=False)

    def body(self, data: bytes, at: float) -> None:
        StreamedAnswer.body(self, data, at)
        self._received.append(data)

    def lateness_s(self, recording: Recording) -> Iterator[float]:
        """Yields the client's time less the stamp of tokens in the window. Both read the machine's monotonic clock."""
        stamps = STAMP.findall(b"".join(self._received).removesuffix(self._rest))
        assert len(stamps) == len(self.times), "a token is missing or has no stamp"
        for at, digits in zip(self.times, stamps, strict=True):
            if recording.holds(at):
                yield (round(at * 1e9) - int(digits, 16)) % STAMP_NS / 1e9
