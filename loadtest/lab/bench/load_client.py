"""Runs the load client: turns a Load into its command line, and the JSON that it prints into a Measurement."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.lab.bench.systems import Wire
from loadtest.lab.figures.measurement import Measurement, parse_measurement
from loadtest.lab.figures.scenarios import Load
from loadtest.mock_engine.engine import MODEL
from loadtest.mock_engine.process import CannotMeasure, pinned_to

SOURCE = Path(__file__).parent / "native" / "load.c"
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Destination:
    """The server that the client talks to, and the processes that it observes: those of the gateway (`pids`) and of the
    engine. `cpus`: where it looks for other processes' CPU time. `intruder`: a request body that is sent besides.
    """

    port: int
    wire: Wire = "text"
    stop: str | None = None
    pids: Sequence[int] = ()
    mock_pids: Sequence[int] = ()
    acks: Path | None = None
    cpus: Sequence[int] = ()
    intruder: Path | None = None


def run_client(program: Path, destination: Destination, load: Load, cpus: Sequence[int] = ()) -> Measurement:
    """Runs the client until the load is over. Raises CannotMeasure if the client fails or does not end by itself."""
    argv = [*pinned_to(cpus), str(program), *_list_options(destination, load)]
    try:
        done = subprocess.run(argv, capture_output=True, check=True, timeout=load.longest_s + GRACE_S)
        return parse_measurement(done.stdout)
    except subprocess.CalledProcessError as exc:
        raise CannotMeasure(f"the load client ended with {exc.returncode}: {exc.stderr.decode()[-500:]}") from exc
    except (subprocess.TimeoutExpired, ValueError) as exc:
        raise CannotMeasure(f"the load client gave no result: {exc}") from exc


def _list_options(destination: Destination, load: Load) -> list[str]:
    values = {
        "--port": destination.port,
        "--wire": destination.wire,
        "--model": MODEL,
        "--stop": destination.stop,
        "--processes": ",".join(map(str, destination.pids)),
        "--mock": ",".join(map(str, destination.mock_pids)),
        "--cpus": ",".join(map(str, destination.cpus)),
        "--acks": destination.acks,
        "--intruder": destination.intruder,
        "--streams": load.streams,
        "--tokens": load.tokens,
        "--ramp": load.ramp_s,
        "--warm": load.warm_s,
        "--window": load.window_s,
        "--drain": load.drain_s,
        "--probe-ms": load.probe_ms,
        "--intruder-ms": load.intruder_ms,
    }
    named = [text for name, value in values.items() if value not in (None, "") for text in (name, str(value))]
    return [*named, "--whole"] if load.is_whole else named
