"""Measures the systems turn by turn.

In: what was found on this machine. Out: a Record after each measurement.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.lab.bench.gateways import Found, Gateway, GatewayLauncher
from loadtest.lab.bench.load_client import Destination, run_client
from loadtest.lab.bench.systems import DIRECT
from loadtest.lab.figures.measurement import Measurement, Record
from loadtest.lab.figures.scenarios import Load, Turn
from loadtest.mock_engine.engine import MockEngine, Pace
from loadtest.mock_engine.process import CannotMeasure, wait_until_quiet

# With the first requests code is compiled, caches and pools fill, modules are imported; for some that takes seconds.
WARM_UP = (Load(16, 64, True, window_s=1.0), Load(64, tokens=100, ramp_s=0.5, window_s=1.5))
WARM_UP_PACE = Pace(interval_us=20_000)


@dataclass(slots=True)
class Runner:
    """Measures turn by turn. `client`: the load client's program. `intruder`: a request body with a long prompt. `show`
    receives lines about the run, `miss` a line on each system that cannot be measured, `keep` each record.
    """

    mock: MockEngine
    launcher: GatewayLauncher
    client: Path
    intruder: Path
    show: Callable[[str], None]
    miss: Callable[[str], None]
    keep: Callable[[Record], None]
    _gateways: dict[str, Gateway] = field(default_factory=dict)

    def run(self, turns: Sequence[Turn], found: Sequence[Found]) -> None:
        """Measures all turns. Systems that do not start are reported and left out."""
        by_name = {each.system.name: each for each in found}
        shared = {turn.system for turn in turns if not turn.scenario.is_alone}
        with ExitStack() as stack:
            for name in (name for name in by_name if name in shared):
                self._start(by_name[name], stack)
            for gateway in self._gateways.values():
                self._warm_up(gateway)
            for turn in (turn for turn in turns if not turn.scenario.is_alone):
                if turn.system in self._gateways:
                    self._take(turn, self._gateways[turn.system])
        for turn in (turn for turn in turns if turn.scenario.is_alone):
            self._take_alone(turn, by_name[turn.system])

    def _start(self, found: Found, stack: ExitStack) -> None:
        self.show(f"starting {found.system.name}")
        try:
            self._gateways[found.system.name] = stack.enter_context(self.launcher.running(found))
        except CannotMeasure as exc:
            self.miss(f"{found.system.name} is left out: {exc}")

    def _take_alone(self, turn: Turn, found: Found) -> None:
        try:
            with self.launcher.running(found) as gateway:
                self._warm_up(gateway)
                self._take(turn, gateway)
        except CannotMeasure as exc:
            self.miss(f"{turn.system} is left out: {exc}")

    def _warm_up(self, gateway: Gateway) -> None:
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
        except CannotMeasure as exc:
            measurement, complaint = None, str(exc)
        cut_off = self._settle(gateway)
        extra = {"streams_cut_off": float(cut_off)} if cut_off else {}
        self.keep(Record(turn.scenario.name, turn.system, turn.repeat, complaint, measurement, extra))

    def _measure(self, gateway: Gateway, load: Load) -> Measurement:
        system, cpus = gateway.system, self.launcher.cpus
        mock_pids, intruder = self.mock.child.pids(), self.intruder if load.intruder_ms else None
        observed = (gateway.pids, mock_pids, self.mock.acks, cpus.all)
        destination = Destination(gateway.port, system.wire, system.stop, *observed, intruder)
        # Without a gateway its CPU is free, and the client gets it.
        return run_client(self.client, destination, load, cpus.gateway if system is DIRECT else cpus.engine)

    def _settle(self, gateway: Gateway) -> int:
        """Leaves no work of this measurement to the next. Returns how many streams had to be cut off for that."""
        cut_off = self.mock.drain()
        if gateway.child:
            wait_until_quiet(gateway.child)
        return cut_off


def describe(record: Record) -> str:
    """Describes a record in one line for the terminal."""
    words = [f"{record.repeat + 1}  {record.scenario:<10} {record.system:<20}"]
    if record.measurement is not None:
        words += _describe_figures(record.measurement)
    words += [f"{name} {value:,.2f}" for name, value in record.extra.items()]
    if record.complaint:
        words.append(f"DOES NOT COUNT: {record.complaint}")
    return "  ".join(words)


def _describe_figures(measured: Measurement) -> Iterator[str]:
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
