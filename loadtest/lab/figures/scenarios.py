"""What is measured: how the mock engine sends, what the client requests, which systems take part, in which order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadtest.mock_engine.engine import Pace


@dataclass(frozen=True, slots=True)
class Load:
    """What the client requests. `is_whole`: answers are not streamed, in a closed loop with `streams` in flight."""

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


PACED = Pace(interval_us=20_000)  # 50 tokens a second and stream
FREE = Pace()
LOCKSTEP = Pace(lockstep=True)

ROUTERS = ("direct", "nginx", "haproxy", "vllm-router", "smg", "crossover-relay")
LANES = (*ROUTERS, "crossover-token")
ONE_WORKER = ("crossover-relay", "crossover-token")
SOCKET = "crossover-token-unix"
TWO_WORKERS = ("crossover-relay-2w", "crossover-token-2w")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. `is_alone`: every system is started for this scenario alone, warmed up and ended, so that its
    memory is that of this load. `repeats`: the most repeats to make; None: as many as asked for.
    """

    name: str
    about: str
    pace: Pace
    load: Load
    systems: tuple[str, ...]
    is_alone: bool = False
    repeats: int | None = None


def _paced(streams: int, ramp_s: float, systems: tuple[str, ...]) -> Scenario:
    about = f"{streams} streams, one token per 20 ms each"
    return Scenario(f"pace{streams}", about, PACED, Load(streams, ramp_s=ramp_s, window_s=6.0), systems)


def _locked(streams: int) -> Scenario:
    about = f"{streams} streams, the next token when the one before has arrived"
    return Scenario(f"lock{streams}", about, LOCKSTEP, Load(streams, tokens=256, ramp_s=streams / 512), ROUTERS)


SOAK = Load(2000, tokens=500, ramp_s=10, warm_s=2, window_s=60, drain_s=60, probe_ms=20)
LONG_PROMPT = Load(100, ramp_s=2, warm_s=2, window_s=10)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "ns16", "16 requests in flight, not streamed", FREE, Load(16, 64, True, window_s=2.5), (*ROUTERS, "litellm")
        ),
        _locked(64),
        _locked(256),
        Scenario("free64", "64 streams, tokens as fast as they go", FREE, Load(64, tokens=256), ROUTERS),
        _paced(64, 1, (*LANES, "litellm")),
        _paced(256, 2, (*LANES, SOCKET, *TWO_WORKERS, "litellm")),
        _paced(450, 3, ("direct", *ONE_WORKER)),
        _paced(512, 3, LANES),
        _paced(810, 4, ("direct", *TWO_WORKERS)),  # 1.8 times the 450
        _paced(1000, 4, LANES),
        Scenario(
            "soak",
            "2,000 streams, one token per 80 ms each, for a minute",
            Pace(interval_us=80_000),
            SOAK,
            (*ONE_WORKER, SOCKET),
            is_alone=True,
            repeats=1,
        ),
        Scenario("quiet", "100 streams of 20 ms per token, nothing else", PACED, LONG_PROMPT, ("crossover-token",)),
        Scenario(
            "longprompt",
            "the same, and a prompt of 100,000 tokens every second",
            PACED,
            replace(LONG_PROMPT, intruder_ms=1000),
            ("crossover-token",),
        ),
    )
}

TRITON_LANE, GRPC_ALONE = "crossover-triton", "grpc.aio"
# Its engine is a real Triton server (lab/bench/triton.py).
TRITON = Scenario(
    "triton",
    "64 streams of 20 ms per token from a real Triton server",
    PACED,
    Load(64, ramp_s=1, warm_s=1.5, window_s=4),
    (TRITON_LANE, GRPC_ALONE),
)

# Names on the command line that stand for several scenarios.
GROUPS = {
    "paced": ("pace64", "pace256", "pace512", "pace1000"),
    "routers": ("ns16", "lock64", "lock256", "free64", "pace64", "pace256", "pace512", "pace1000"),
    "longprompt": ("quiet", "longprompt"),
    "workers2": ("pace256", "pace450", "pace810"),
}


def quicken(scenario: Scenario) -> Scenario:
    """Returns the scenario with shorter windows, for a first look: the figures scatter more."""
    load = scenario.load
    if scenario.is_alone:
        return replace(scenario, load=replace(load, window_s=15, drain_s=45))
    window_s = 5 if load.window_s > 6 else 1.5  # long prompts need some time to arrive
    return replace(scenario, load=replace(load, window_s=window_s, warm_s=min(load.warm_s, 0.7)))


@dataclass(frozen=True, slots=True)
class Turn:
    scenario: Scenario
    system: str
    repeat: int


def plan(scenarios: Sequence[Scenario], systems: Sequence[str], repeats: int) -> Iterator[Turn]:
    """Yields turns repeat by repeat, scenario by scenario; the systems begin with another one in each repeat."""
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


def restrict(scenario: Scenario, systems: Sequence[str]) -> Scenario:
    """Returns the scenario with these systems only."""
    return replace(scenario, systems=tuple(name for name in scenario.systems if name in systems))
