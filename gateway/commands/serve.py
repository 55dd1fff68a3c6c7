"""`crossover serve`: the gateway as a server, in one process or in several that share a listening socket.

In: a configuration file. Out: one `ready` line on stdout, logs on stderr, an exit code. Knows no request.
"""

import asyncio
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from gateway.address import make_url
from gateway.commands.access import AccessRefused, check_access
from gateway.commands.options import ServeOptions, read_settings
from gateway.commands.supervisor import Supervisor
from gateway.settings import MAX_WORKERS, Settings


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration; by default $CROSSOVER_CONFIG, else crossover.yaml here.",
)
@click.option(
    "--workers", type=click.IntRange(1, MAX_WORKERS), help="Worker processes; by default as in the configuration."
)
@click.option(
    "--drain-timeout-s",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="How long running answers may take to end after SIGTERM or Ctrl-C.",
)
@click.option("--access-log", is_flag=True, help="One line on stderr for every request.")
@click.option("--allow-anonymous", is_flag=True, help="Listen beyond this machine without keys for inference.")
def serve(
    config: Path | None, workers: int | None, drain_timeout_s: int, *, access_log: bool, allow_anonymous: bool
) -> None:
    """Serve the OpenAI API over the backends that a configuration names.

    On SIGTERM or Ctrl-C no connection is accepted any more, running answers end, and those that do not within the drain
    time end with an error event; a second Ctrl-C ends at once.

    Several workers share one listening socket, one count of what is in flight and one policy. A worker that dies is
    replaced, and what it had in flight counts no more.

    \b
    Examples:
      crossover serve -c crossover.yaml
      crossover serve -c crossover.yaml --workers 4

    Exit codes: 0 ended by a signal; 1 it could not start (a port that is taken, a tokenizer that does not load, keys
    that cannot be read); 2 bad arguments or configuration, or open beyond this machine without being allowed to.
    """
    settings = read_settings("serve", config)
    settings = replace(
        settings,
        workers=workers or settings.workers,
        allow_anonymous=allow_anonymous or settings.allow_anonymous,
    )
    if settings.workers > 1 and settings.responses.keep == "memory":
        raise click.UsageError("responses.keep: memory is each worker's own; several workers need file")
    if settings.workers > 1 and sys.platform != "linux":
        raise click.UsageError("several workers share memory and a lock that only Linux has; use --workers 1")
    options = ServeOptions(settings.log_level, access_log, drain_timeout_s)
    options.configure_logging()
    try:
        check_access(settings)
    except AccessRefused as exc:
        click.echo(f"crossover serve: {exc}", err=True)
        sys.exit(exc.code)
    _raise_descriptor_limit()
    with _bind(settings.listen_host, settings.listen_port) as listener:
        (_run_alone if settings.workers == 1 else _supervise)(settings, options, listener)


def _raise_descriptor_limit() -> None:
    """Takes all the descriptors that this process may have: most shells and init systems begin with 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # on systems whose real limit is below the one they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bind(host: str, port: int) -> socket.socket:
    """Binds before anything slow, so that a taken port is known at once. Connections are accepted when all is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is named; on, it can hold a small write for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        click.echo(f"crossover serve: cannot listen on {host}:{port}: {exc.strerror}", err=True)
        sys.exit(1)
    return listener


def _name_url(listener: socket.socket) -> str:
    return make_url(*listener.getsockname()[:2])


def _run_alone(settings: Settings, options: ServeOptions, listener: socket.socket) -> None:
    # Imported here: a supervisor needs none of it, and would hold 16 MB more and start most of a second later.
    from gateway.app import build_app  # noqa: PLC0415
    from gateway.commands.server import Server  # noqa: PLC0415

    Server(build_app(settings), options, partial(_announce, listener)).run([listener])


def _supervise(settings: Settings, options: ServeOptions, listener: socket.socket) -> None:
    sys.exit(asyncio.run(Supervisor(settings, options, listener, partial(_announce, listener)).run()))


def _announce(listener: socket.socket) -> None:
    click.echo(f"ready {_name_url(listener)}/v1")
