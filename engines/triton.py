"""python -m engines.triton: run the tritonserver of the wheel nvidia-pytriton with our model repository.

In: an environment with that wheel. Out: a child that serves until a signal, and one ready line.
"""

import argparse
import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import IO

from engines import process
from engines.adapters import ADAPTERS
from engines.process import CannotStart
from engines.pytriton import Environment, Interpreter, backend_directory

ROOT = Path(__file__).resolve().parents[1]
SHARED_MEMORY = Path("/dev/shm")
LOG_LINES = 20
SERVICES = ("grpc", "http", "metrics")


def command(options: argparse.Namespace, environment: Environment, backends: Path, shared_memory: str) -> list[str]:
    return [
        str(environment.triton / "bin/tritonserver"),
        f"--model-repository={options.model_repository}",
        f"--backend-directory={backends}",
        *(f"--{name}-address={options.host}" for name in SERVICES),
        *(f"--{name}-port={getattr(options, f'{name}_port')}" for name in SERVICES),
        # Servers of one machine must not share these regions.
        f"--backend-config=python,shm-region-prefix-name={shared_memory}",
        # Clients may ping every ten seconds; by default tritonserver closes the connection after two such pings.
        "--grpc-http2-min-recv-ping-interval-without-data=10000",
        "--grpc-http2-max-ping-strikes=0",
        "--grpc-keepalive-permit-without-calls=1",
        f"--exit-timeout-secs={options.exit_timeout}",
        "--disable-auto-complete-config",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=false",
    ]


def child_environment(
    options: argparse.Namespace, environment: Environment, interpreter: Interpreter
) -> Mapping[str, str]:
    return {
        **os.environ,  # noqa: TID251 - a process launcher
        # The stub embeds the interpreter that it finds first, and engines start children and compilers from there.
        "PATH": os.pathsep.join([str(interpreter.path.parent), *inherited("PATH")]),
        "LD_LIBRARY_PATH": os.pathsep.join([
            environment.libraries,
            interpreter.libraries,
            *inherited("LD_LIBRARY_PATH"),
        ]),
        "CROSSOVER_ROOT": str(ROOT),
        "CROSSOVER_SITE_PACKAGES": os.pathsep.join(interpreter.packages),
        "CROSSOVER_MODEL_DIR": str(options.model_dir.absolute()),
        "CROSSOVER_ENGINE": options.engine or "",
        "CROSSOVER_ENGINE_ARGS": "" if options.engine_args is None else str(options.engine_args.absolute()),
    }


def inherited(name: str) -> list[str]:
    return [part for part in os.environ.get(name, "").split(os.pathsep) if part]  # noqa: TID251 - a process launcher


@contextlib.asynccontextmanager
async def running(options: argparse.Namespace, output: IO[bytes]) -> AsyncIterator[asyncio.subprocess.Process]:
    """tritonserver as a child process. When the block is left it has ended, and its shared memory is removed."""
    environment = Environment.at(options.venv)
    interpreter = Interpreter.at(options.engine_python) if options.engine_python else environment.interpreter()
    shared_memory = f"crossover_{os.getpid()}_"
    with backend_directory(environment, interpreter) as backends:
        child = await asyncio.create_subprocess_exec(
            *command(options, environment, backends, shared_memory),
            env=child_environment(options, environment, interpreter),
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            yield child
        finally:
            await end(child, options.exit_timeout + 1)
            remove_regions(shared_memory)


def remove_regions(prefix: str) -> None:
    """Remove the shared memory of a server that was killed; one that ended well leaves none."""
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


async def end(child: asyncio.subprocess.Process, grace_s: float) -> None:
    if child.returncode is None:
        child.terminate()
    try:
        async with asyncio.timeout(grace_s):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
    finally:
        # A server that is killed, or stopped while it loads, leaves its Python stub running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


async def wait_until_ready(
    child: asyncio.subprocess.Process, options: argparse.Namespace, stopped: asyncio.Event
) -> None:
    """Poll the model, because the server reports itself ready before it has loaded one.

    Returns early when `stopped` is set. Raises CannotStart if the child ends first, or after the start timeout.
    """
    url = f"http://{options.host}:{options.http_port}/v2/models/{options.model}/ready"
    try:
        async with asyncio.timeout(start_timeout_s(options)):
            while not (stopped.is_set() or await asyncio.to_thread(process.answers, url)):
                if child.returncode is not None:
                    raise CannotStart(f"tritonserver ended with exit code {child.returncode}")
                await asyncio.sleep(0.1)
    except TimeoutError as exc:
        raise CannotStart(f"tritonserver was not ready within {start_timeout_s(options):g} s") from exc


def start_timeout_s(options: argparse.Namespace) -> float:
    """Returns the option, else a default: loading a large model and capturing a GPU's graphs take minutes each."""
    if options.start_timeout is not None:
        return float(options.start_timeout)
    return 120.0 if options.engine in {None, "reference"} else 1800.0


async def serve(options: argparse.Namespace) -> None:
    for name in SERVICES:
        process.check_free(options.host, getattr(options, f"{name}_port"))
    stopped = process.stop_signal()
    with log_file(options.log) as log:
        async with running(options, log) as child:
            try:
                await wait_until_ready(child, options, stopped)
            except CannotStart as exc:
                raise CannotStart(f"{exc}; from its log:\n{complaints(log)}") from exc
            if not stopped.is_set():
                announce(options)
            await serve_until(stopped, child)


def announce(options: argparse.Namespace) -> None:
    grpc, http, metrics = (f"{options.host}:{getattr(options, f'{name}_port')}" for name in SERVICES)
    process.announce(f"grpc://{grpc} http://{http} http://{metrics}/metrics")


def log_file(path: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="crossover-triton-") if path is None else path.open("w+b")


def complaints(log: IO[bytes]) -> str:
    """The lines logged as errors, else the last lines."""
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"E\d{4} |error: ", line)]
    return "\n".join((errors or lines)[-LOG_LINES:])


async def serve_until(stopped: asyncio.Event, child: asyncio.subprocess.Process) -> None:
    """Return when `stopped` is set. Raises CannotStart if the child ends first, so that the exit code reports it."""
    waits = [asyncio.ensure_future(wait) for wait in (stopped.wait(), child.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if not stopped.is_set():
        raise CannotStart(f"tritonserver ended by itself with exit code {child.returncode}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines.triton", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".stacks/triton", help="default: %(default)s")
    parser.add_argument(
        "--model-repository", type=Path, default=ROOT / "model_repo/python", help="default: %(default)s"
    )
    parser.add_argument("--model", default="tensorrt_llm", help="the model to wait for (default: %(default)s)")
    parser.add_argument("--model-dir", type=Path, default=ROOT / "engines/reference/weights", help="weights it serves")
    parser.add_argument(
        "--engine", choices=ADAPTERS, help="what computes the tokens (default: as in config.pbtxt, reference)"
    )
    parser.add_argument(
        "--engine-args", type=Path, metavar="FILE", help="JSON or YAML: the engine's own arguments, without the model"
    )
    parser.add_argument(
        "--engine-python",
        type=Path,
        metavar="PATH",
        help="the Python that the engine is installed for; Triton has to have its stub (default: that of --venv)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--grpc-port", type=int, default=8001, help="default: %(default)s")
    parser.add_argument("--http-port", type=int, default=8000, help="default: %(default)s")
    parser.add_argument("--metrics-port", type=int, default=8002, help="default: %(default)s")
    parser.add_argument(
        "--start-timeout", type=float, help="seconds (default: 120 for the reference engine, 1800 for others)"
    )
    parser.add_argument(
        "--exit-timeout", type=int, default=5, help="seconds for requests in flight (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, help="file for tritonserver's log (default: shown only if it cannot start)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(process.run(serve(parse(sys.argv[1:]))))
