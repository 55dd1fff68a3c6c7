"""`crossover serve`: the gateway as a server, a process that keeps generations of workers.

In: a configuration file. Out: one `ready` line on stdout, logs on stderr, an exit code. Knows no request.
"""

import asyncio
import logging
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from gateway.commands.config import CONFIG
from gateway.commands.generations import Generations


@click.command()
@CONFIG
@click.option("--workers", type=click.IntRange(1), help="Worker processes; by default as in the configuration.")
@click.option(
    "--drain-timeout-s",
    type=click.IntRange(0, 3600),
    default=30,
    show_default=True,
    help="How long running answers may take to end after SIGTERM, Ctrl-C or a restart.",
)
@click.option("--access-log", is_flag=True, help="One line on stderr for every request.")
@click.option("--allow-anonymous", is_flag=True, help="Listen beyond this machine without keys for inference.")
def serve(config: Path | None, **options: Any) -> None:  # Any: click's values
    """Serve the OpenAI API over the backends that a configuration names.

    On SIGTERM or Ctrl-C no connection is accepted any more, running answers end, and those that do not within the drain
    time end with an error event; a second Ctrl-C ends at once.

    On SIGHUP, which `crossover restart` sends, new workers with the file and the code as they are then take the place
    of these, without a connection refused. If they do not start, these go on.

    Several workers share one listening socket, one count of what is in flight and one policy. A worker that dies or
    hangs is replaced, and what it had in flight counts no more.

    \b
    Examples:
      crossover serve -c crossover.yaml
      crossover serve -c crossover.yaml --workers 4

    Exit codes: 0 ended by a signal; 1 it could not start (a port or a state folder that is taken, a tokenizer that does
    not load, keys that cannot be read); 2 bad arguments or configuration, or open beyond this machine without being
    allowed to.
    """
    if sys.platform != "linux":
        raise click.UsageError("workers share memory with their supervisor in a way that only Linux has")
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form)
    _raise_descriptor_limit()
    options["config"] = None if config is None else str(config)
    sys.exit(asyncio.run(Generations(options, lambda url: click.echo(f"ready {url}/v1")).run()))


def _raise_descriptor_limit() -> None:
    """Takes all the descriptors that this process may have: most shells and init systems begin with 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # on systems whose real limit is below the one they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
