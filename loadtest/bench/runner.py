"""A run: every scenario over its systems, in turns, so often as it takes for a median.

In: what was found on this machine. Out: a Record after each measurement.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtest.bench.client import Load, Measurement, Subject, run_client
from loadtest.bench.errors import BenchError
from loadtest.bench.gateways import Found, Gateway, Hall
from loadtest.bench.mock import MockEngine, Pace
from loadtest.bench.processes import wait_until_quiet
from loadtest.bench.record import Record
from loadtest.bench.scenarios import Scenario
from loadtest.bench.systems import DIRECT

# Code is compiled, caches and pools fill, modules are imported with the first requests; for some that takes seconds.
WARM_UP = (Load(16, 64, True, window_s=1.0), Load(64, tokens=100, ramp_s=0.5, window_s=1.5))
WARM_UP_PACE = Pace(interval_us=20_000)


@dataclass(frozen=True, slots=True)
class Turn:
    scenario: Scenario
    system: str
    repeat: int


def plan(scenarios: Sequence[Scenario], systems: Sequence[str], repeats: int) -> Iterator[Turn]:
    """Repeat by repeat, scenario by scenario, the systems in turns that begin with another one each time."""
    for repeat in range(repeats):
        for scenario in scenarios:
            if scenario.repeats is not None and repeat >= scenario.repeats:
                continue
            taking_part = [system for system in systems if system in scenario.systems]
            for system in rotate(taking_part, repeat):
                yield Turn(scenario, system, repeat)


def rotate(items: Sequence[str], by: int) -> list[str]:
    start = by % len(items) if items else 0
    return [*items[start:], *items[:start]]


@dataclass(slots=True)
class Runner:
    """`keep` gets each record, `miss` a line on whatever cannot be measured, `say` what goes on."""

    mock: MockEngine
    hall: Hall
    client: Path
    intruder: Path
    say: Callable[[str], None]
    miss: Callable[[str], None]
    keep: Callable[[Record], None]
    _gateways: dict[str, Gateway] = field(default_factory=dict)

    def run(self, turns: Sequence[Turn], found: Sequence[Found]) -> None:
        """Systems that do not start are reported and left out."""
        by_name = {each.system.name: each for each in found}
        shared = {turn.system for turn in turns if not turn.scenario.is_alone}
        with ExitStack() as stack:
            for name in (name for name in by_name if name in shared):
                self._start(by_name[name], stack)
            for gateway in self._gateways.values():
                self._warm(gateway)
            for turn in (turn for turn in turns if not turn.scenario.is_alone):
                if turn.system in self._gateways:
                    self._take(turn, self._gateways[turn.system])
        for turn in (turn for turn in turns if turn.scenario.is_alone):
            self._take_alone(turn, by_name[turn.system])

    def _start(self, found: Found, stack: ExitStack) -> None:
        self.say(f"starting {found.system.name}")
        try:
            self._gateways[found.system.name] = stack.enter_context(self.hall.running(found))
        except BenchError as exc:
            self.miss(f"{found.system.name} is left out: {exc}")

    def _take_alone(self, turn: Turn, found: Found) -> None:
        try:
            with self.hall.running(found) as gateway:
                self._warm(gateway)
                self._take(turn, gateway)
        except BenchError as exc:
            self.miss(f"{turn.system} is left out: {exc}")

    def _warm(self, gateway: Gateway) -> None:
        for load in WARM_UP:
            self.mock.set(WARM_UP_PACE)
            self._measure(gateway, load)
            self._settle(gateway)

    def _take(self, turn: Turn, gateway: Gateway) -> None:
        self.mock.set(turn.scenario.pace)
        try:
            measurement = self._measure(gateway, turn.scenario.load)
            complaint = measurement.complaint
            if turn.scenario.load.intruder_ms and not measurement.intrusions:
                complaint = complaint or "no long prompt was answered"
        except BenchError as exc:
            measurement, complaint = None, str(exc)
        left = self._settle(gateway)
        extra = {"streams_cut_off": float(left)} if left else {}
        record = Record(turn.scenario.name, turn.system, turn.repeat, complaint, measurement, extra)
        self.keep(record)

    def _measure(self, gateway: Gateway, load: Load) -> Measurement:
        subject = Subject(
            gateway.port,
            gateway.system.wire,
            gateway.system.stop,
            gateway.pids,
            self.mock.child.pids(),
            self.mock.acks,
            self.hall.seats.all,
            self.intruder if load.intruder_ms else None,
        )
        # Without a gateway its CPU is free, and the client has it.
        seat = self.hall.seats.gateway if gateway.system is DIRECT else self.hall.seats.engine
        return run_client(self.client, subject, load, seat)

    def _settle(self, gateway: Gateway) -> int:
        """Nothing of this measurement is left for the next. How many streams had to be cut off for that."""
        left = self.mock.drain()
        if gateway.child:
            wait_until_quiet(gateway.child)
        return left


def describe(record: Record) -> str:
    """One line for the terminal."""
    words = [f"{record.repeat + 1}  {record.scenario:<10} {record.system:<20}"]
    if record.measurement is not None:
        words += _figures(record.measurement)
    words += [f"{name} {value:,.2f}" for name, value in record.extra.items()]
    if record.complaint:
        words.append(f"DOES NOT COUNT: {record.complaint}")
    return "  ".join(words)


def _figures(measured: Measurement) -> Iterator[str]:
    if measured.tokens:
        yield f"{measured.tokens / measured.window_s:>7,.0f} tok/s"
        yield f"{measured.cpu_s * 1e6 / measured.tokens:>7.2f} us/token"
        yield f"delay p50 {measured.delay_us.p50:,.0f} p99 {measured.delay_us.p99:,.0f} us"
    elif measured.requests:
        yield f"{measured.requests / measured.window_s:>7,.0f} req/s"
        yield f"{measured.cpu_s * 1e6 / measured.requests:>7.1f} us/request"
        yield f"p50 {measured.latency_us.p50:,.0f} p99 {measured.latency_us.p99:,.0f} us"
    if measured.lag_us.count:
        yield f"lag p99 {measured.lag_us.p99 / 1000:.1f} ms, peak {measured.peak_rss_kib / 1024:,.0f} MiB"


def shorten(scenario: Scenario, systems: Sequence[str]) -> Scenario:
    """Only these systems."""
    return replace(scenario, systems=tuple(name for name in scenario.systems if name in systems))
