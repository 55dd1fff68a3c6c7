"""Slow and rude clients: a healthy client's first token behind the gateway and behind nginx, in turns.

In: options. Out: a Result: by attack the p95 behind each, the gateway's event loop and its memory.
"""

import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from deploy.launch import LOGS
from deploy.ports import LOCALHOST, find_free, listens
from deploy.processes import Process
from deploy.stacks import GATEWAY, gateway
from deploy.supervisor import LaunchError, Supervisor
from loadtest.client.connection import clock
from loadtest.lab.bench.systems import SYSTEMS
from loadtest.lab.bench.systems import Site as Place
from tests.faults.rounds.attack import ATTACKS, PATH, attacked, describe
from tests.faults.rounds.engine import SHORT
from tests.faults.rounds.figures import Bound, Result, find_greatest, percentile, ratio
from tests.faults.rounds.load import Due, Seen, play_alone, processes, space
from tests.faults.rounds.site import weigh
from tests.faults.stand import find_workers_of

NGINX = "nginx"
SYSTEMS_IN_TURN = (NGINX, GATEWAY)
RATE = 50.0  # requests a second of the healthy client
ONSET_S, ONSET_RATE = 10.0, 2.0  # of an attack, and the healthy client's requests in it; the p95 is of those afterwards
PROBES, PROBE_RATE = 400, 100.0  # of the gateway's event loop
PATIENCE_S = 10.0
SOON_S, REST_S = 0.5, 1.0
SAMPLE_S = 0.5
MORE_MB = 200.0


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int
    requests: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One system under one attack. `onset`: requests while it begins. Of the gateway alone: `probes` of its event loop,
    and its `megabytes` at most.
    """

    onset: Sequence[Seen]
    healthy: Sequence[Seen]
    probes: Sequence[Seen] = ()
    megabytes: float = 0.0

    @property
    def p95_ms(self) -> float:
        return 1e3 * (percentile((find_ttft(seen) for seen in self.healthy), 0.95) or 0.0)

    @property
    def without_token(self) -> int:
        return sum(seen.ttft_s is None for seen in (*self.onset, *self.healthy))


def find_ttft(seen: Seen) -> float:
    return float("inf") if seen.ttft_s is None else seen.ttft_s


def find_trip_ms(seen: Seen) -> float:
    """Returns the round trip of a probe that the event loop answers by itself: no less than how late the loop is."""
    return float("inf") if seen.ended_at is None else 1e3 * (seen.ended_at - seen.sent_at)


@dataclass(slots=True)
class Attacked:
    """The cells of one attack, by system."""

    name: str
    cells: dict[str, list[Cell]] = field(default_factory=lambda: {name: [] for name in SYSTEMS_IN_TURN})

    def median_ms(self, system: str) -> float:
        return statistics.median(cell.p95_ms for cell in self.cells[system])

    @property
    def ratio(self) -> float | None:
        return ratio(self.median_ms(GATEWAY), self.median_ms(NGINX))

    @property
    def lag_ms(self) -> float | None:
        return percentile((find_trip_ms(seen) for cell in self.cells[GATEWAY] for seen in cell.probes), 0.99)

    @property
    def megabytes(self) -> float:
        return max(cell.megabytes for cell in self.cells[GATEWAY])

    @property
    def without_token(self) -> int:
        return sum(cell.without_token for cell in self.cells[GATEWAY])

    @property
    def onset_s(self) -> float | None:
        return find_greatest(find_ttft(seen) for cell in self.cells[GATEWAY] for seen in cell.onset)

    @property
    def row(self) -> tuple[object, ...]:
        medians = (self.median_ms(NGINX), self.median_ms(GATEWAY))
        return (self.name, *medians, self.ratio, self.lag_ms, self.megabytes, self.onset_s, self.without_token)


COLUMNS = (
    "attack",
    "nginx p95 ms",
    "gateway",
    "ratio",
    "probe p99 ms",
    "MB at most",
    "onset, slowest s",
    "no token in 10 s",
)


@dataclass(frozen=True, slots=True)
class Servers:
    """nginx and the gateway before the same engine. `ports`: by name."""

    ports: Mapping[str, int]
    gateway_pid: int


@contextmanager
def serving(folder: Path) -> Iterator[Servers]:
    """Raises LaunchError where nginx is not installed."""
    system = SYSTEMS[NGINX]
    if (program := system.find({})) is None or system.launch is None:
        raise LaunchError(f"nginx is not installed: {system.install}")
    engine, *ports = find_free(3)
    url = f"http://{LOCALHOST}:{engine}"
    launch = system.launch(Place(program, ports[0], url, folder))
    configuration = folder / "crossover.yaml"
    configuration.write_text(yaml.safe_dump(configure(ports[1], url)))
    served = gateway(configuration, ports[1])
    with Supervisor(folder / LOGS) as supervisor:
        command = (sys.executable, "-m", "tests.faults.rounds.engine", str(engine))
        supervisor.start(Process("engine", command, lambda: listens(engine)))
        supervisor.start(Process(NGINX, tuple(launch.argv), lambda: listens(ports[0]), launch.env))
        child = supervisor.start(served)
        supervisor.wait_until_ready(60, lambda *_: None)
        yield Servers(dict(zip(SYSTEMS_IN_TURN, ports, strict=True)), child._popen.pid)


def configure(port: int, engine: str) -> dict[str, object]:
    """Returns the crossover.yaml of a gateway that relays to one engine as if it were two."""
    backends = {name: {"kind": "relay", "url": engine} for name in ("a", "b")}
    policy = {"kind": "threshold", "low": "a", "high": "b", "up": 1_000_000, "down": 1}
    return {"listen": f"{LOCALHOST}:{port}", "models": [{"id": "tiny", "backends": backends, "policy": policy}]}


async def measure(options: Options, folder: Path) -> Result:
    with serving(folder) as servers, processes(1) as pool:
        measuring = _Measuring(options, servers, pool)
        await measuring.measure(GATEWAY, "none")  # both processes are warm then
        before = weigh(find_workers_of(servers.gateway_pid))
        attacks = [await measuring.compare(name) for name in ATTACKS]
    result = Result(COLUMNS, [attack.row for attack in attacks], judge(attacks, before))
    result.raw = {attack.name: _describe(attack) for attack in attacks}
    return result


def judge(attacks: Sequence[Attacked], before: float) -> list[Bound]:
    ratios = [Bound(f"gateway over nginx: {attack.name}", attack.ratio, most=1.5) for attack in attacks]
    more = max(attack.megabytes for attack in attacks) - before
    return [
        *ratios,
        Bound(
            "round trip of a probe, p99, ms, worst attack",
            find_greatest(attack.lag_ms for attack in attacks),
            most=20.0,
        ),
        Bound("memory that came on top, MB", more, most=MORE_MB),
        Bound("healthy requests without a token in 10 s", sum(attack.without_token for attack in attacks), most=0),
    ]


class _Measuring:
    def __init__(self, options: Options, servers: Servers, pool: ProcessPoolExecutor) -> None:
        self._options = options
        self._servers = servers
        self._pool = pool

    async def compare(self, name: str) -> Attacked:
        """So many pairs, each of which begins with the other system."""
        attack = Attacked(name)
        for number in range(self._options.rounds):
            for system in SYSTEMS_IN_TURN[:: -1 if number % 2 else 1]:
                attack.cells[system].append(await self.measure(system, name))
        return attack

    async def measure(self, system: str, name: str) -> Cell:
        requests, body = self._options.requests, describe(SHORT)
        healthy = [Due(at, "healthy", body, PATH) for at in space(RATE, requests / RATE)]
        probes = [Due(at, "probe", path="/health") for at in space(PROBE_RATE, PROBES / PROBE_RATE)]
        onset = [Due(at, "onset", body, PATH) for at in space(ONSET_RATE, ONSET_S if ATTACKS[name] else 0.0)]
        with attacked(name, self._servers.ports[system]):
            onset_seen, _ = await self._play(system, onset)
            seen, megabytes = await self._play(system, healthy)
            probed, later = await self._play(system, probes if system == GATEWAY else ())
        await asyncio.sleep(REST_S)
        return Cell(onset_seen, seen, probed, max(megabytes, later))

    async def _play(self, system: str, schedule: Sequence[Due]) -> tuple[list[Seen], float]:
        """Returns what was seen, and the gateway's megabytes at most meanwhile."""
        url = f"http://{LOCALHOST}:{self._servers.ports[system]}"
        playing = self._pool.submit(play_alone, url, schedule, clock() + SOON_S, PATIENCE_S)
        megabytes = 0.0
        while not playing.done():
            megabytes = max(megabytes, weigh(find_workers_of(self._servers.gateway_pid)))
            await asyncio.sleep(SAMPLE_S)
        return playing.result(), megabytes


def _describe(attack: Attacked) -> dict[str, object]:
    """As JSON."""
    return {
        **{
            system: [[seen.ttft_s for seen in cell.healthy] for cell in cells] for system, cells in attack.cells.items()
        },
        "onset": [[seen.ttft_s for seen in cell.onset] for cell in attack.cells[GATEWAY]],
        "probes_ms": [[find_trip_ms(seen) for seen in cell.probes] for cell in attack.cells[GATEWAY]],
        "megabytes": [cell.megabytes for cell in attack.cells[GATEWAY]],
    }
