"""`crossover serve`: the gateway as a server, from the listening socket to the last answer.

In: a configuration file. Out: one `ready` line on stdout, logs on stderr, an exit code. Knows uvicorn; no request.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import uvicorn

from gateway.api import Downstream
from gateway.app import Gateway, build_app
from gateway.settings import Settings, SettingsError, default_path, load_settings

KEEP_ALIVE_S = (
    75  # longer than clients keep idle connections (aiohttp 15 s), so that they close first and lose no request
)
FORCED_END_S = 2  # beyond the drain time, for streams that have been told to end


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration; by default $CROSSOVER_CONFIG, else crossover.yaml here.",
)
@click.option("--workers", type=click.IntRange(1, 1), help="Worker processes; only 1 is supported so far.")
@click.option(
    "--drain-timeout-s",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="How long running answers may take to end after SIGTERM or Ctrl-C.",
)
@click.option("--access-log", is_flag=True, help="One line on stderr for every request.")
def serve(config: Path | None, workers: int | None, drain_timeout_s: int, access_log: bool) -> None:
    """Serve the OpenAI API over the backends that a configuration names.

    On SIGTERM or Ctrl-C no connection is accepted any more, running answers end, and those that do not within the drain
    time end with an error event; a second Ctrl-C ends at once.

    \b
    Example:
      crossover serve -c crossover.yaml

    Exit codes: 0 ended by a signal; 1 it could not start (a port that is taken, a tokenizer that does not load); 2 bad
    arguments or configuration.
    """
    settings = _load(config or default_path())
    _configure_logging(settings.log_level, access_log)
    with _bind(settings.listen_host, settings.listen_port) as listener:
        _run(build_app(settings), listener, drain_timeout_s, access_log)


class Server(uvicorn.Server):
    """Says when it is ready, and ends what the drain time does not."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, drain_timeout_s: int) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._drain_timeout_s = drain_timeout_s

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which raises the signal once more in the end: the process would die of it, not exit with 0."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What has been loaded stays; the collector would walk it in every full collection: 0.1 s without a token.
        gc.collect()
        gc.freeze()
        for listener in () if self.should_exit else sockets or ():
            click.echo(f"ready {_name_url(listener)}/v1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn cancels what is left in the end, which cuts streams off in silence.
        asyncio.get_running_loop().call_later(self._drain_timeout_s, self._gateway.give_up)
        await super().shutdown(sockets)


def _load(path: Path) -> Settings:
    try:
        return load_settings(path)
    except SettingsError as exc:
        click.echo("\n".join(f"crossover serve: {path}: {problem}" for problem in exc.problems), err=True)
        sys.exit(2)


def _configure_logging(level: str, access_log: bool) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if level != "debug":
        for name in ("uvicorn.error", "httpx"):  # one line per start and stop, one per probe
            logging.getLogger(name).setLevel(logging.WARNING)
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)


def _bind(host: str, port: int) -> socket.socket:
    """Before anything slow, so that a taken port is known at once; connections are accepted only when all is ready."""
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
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _run(gateway: Gateway, listener: socket.socket, drain_timeout_s: int, access_log: bool) -> None:
    config = uvicorn.Config(
        gateway,
        loop="uvloop",
        http=Downstream,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=drain_timeout_s + FORCED_END_S,
    )
    try:
        Server(config, gateway, drain_timeout_s).run(sockets=[listener])
    except SystemExit as exc:  # uvicorn's word for a start that failed, with the cause logged
        raise SystemExit(1) from exc
