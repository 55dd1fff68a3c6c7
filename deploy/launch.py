"""Starts a stack with its gateway, for the demo and for tests, and ends all of it.

In: a Stack and a port. Out: a Launched, ready to answer for as long as the block runs. Raises LaunchError.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.ports import LOCALHOST, is_taken
from deploy.stacks import Stack, copy_tokenizer, gateway
from deploy.supervisor import LaunchError, Supervisor

LOGS = "logs"  # in the run's folder


@dataclass(frozen=True, slots=True)
class Launched:
    """A stack that runs: `url` is the gateway's, without /v1."""

    stack: Stack
    url: str
    run_dir: Path
    supervisor: Supervisor


@contextmanager
def launched(
    stack: Stack,
    port: int,
    run_dir: Path,
    report: Callable[[str, float], None],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Launched]:
    """Every process is ready inside the block and has ended after it. Logs and crossover.yaml stay in `run_dir`.

    `environment`: more of it, for the gateway.
    """
    if is_taken(port):
        raise LaunchError(f"port {port} of {LOCALHOST} is taken by another program; choose another with --port")
    run_dir.mkdir(parents=True, exist_ok=True)
    stack = fit_tokenizer(stack, run_dir)
    configuration = run_dir / "crossover.yaml"
    configuration.write_text(stack.configuration(port))
    with Supervisor(run_dir / LOGS) as supervisor:
        served = gateway(configuration, port)
        served = replace(served, environment={**served.environment, **(environment or {})})
        for process in (*stack.engines, served):
            supervisor.start(process)
        supervisor.wait_until_ready(stack.startup_s, report)
        yield Launched(stack, f"http://{LOCALHOST}:{port}", run_dir, supervisor)


def fit_tokenizer(stack: Stack, run_dir: Path) -> Stack:
    """Returns the stack with a tokenizer whose context is that of its engines."""
    if stack.context_length is None:
        return stack
    return replace(stack, weights=copy_tokenizer(stack.weights, run_dir / "tokenizer", stack.context_length))
