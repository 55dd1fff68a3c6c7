"""`crossover restart`: has a running gateway start anew, with the file and the code as they are now.

In: the configuration, whose state folder names the process. Out: one line, an exit code. The gateway does the rest.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import click

from gateway.commands.config import CONFIG
from gateway.commands.options import read_settings
from gateway.restarts import Standing
from gateway.state_folder import OWNER

POLL_S = 0.05
READS = 100  # at most, of a file that a gateway has just made
WAITS_S = 300.0  # longer than the gateway waits for its new workers


@click.command()
@CONFIG
def restart(config: Path | None) -> None:
    """Restart the gateway that runs with a configuration, without a connection refused or an answer cut off.

    New workers start with the file and the code as they are now, and take the place of the old ones when all are ready;
    answers under way end where they are, within the drain time. If the new ones do not start, the old ones go on.

    \b
    Example:
      crossover restart -c crossover.yaml

    Exit codes: 0 new workers serve; 1 they do not start, and nothing has changed; 2 bad configuration, or no gateway
    runs with it.
    """
    folder = read_settings("restart", config).state_folder
    path = (folder or Path()) / OWNER
    before = _find_gateway(path)
    target = before.begun + 1
    try:
        os.kill(before.pid, signal.SIGHUP)
    except OSError as exc:
        raise NotFound(f"cannot signal the gateway with pid {before.pid}: {exc.strerror}") from exc
    deadline = time.monotonic() + WAITS_S
    while (standing := _read(path)).ended < target:
        if time.monotonic() > deadline or not Path(f"/proc/{before.pid}").exists():
            raise click.ClickException(f"the gateway with pid {before.pid} does not report how it went; see its log")
        time.sleep(POLL_S)
    assert standing.last is not None  # it has ended
    if standing.last.why is not None:
        raise click.ClickException(f"nothing has changed: {standing.last.why}")
    click.echo(f"generation {standing.generation} serves")


class NotFound(click.ClickException):
    """No gateway is there to be restarted."""

    exit_code = 2


def _find_gateway(path: Path) -> Standing:
    """Returns how the gateway stands that has this lock file open; another process may have its number by now."""
    with suppress(OSError):  # none has run, or it has ended
        standing = _read(path)
        if any(fd.exists() and fd.samefile(path) for fd in Path(f"/proc/{standing.pid}/fd").iterdir()):
            return standing
    raise NotFound(f"no gateway of this machine has {path}")


def _read(path: Path) -> Standing:
    for _ in range(READS):
        try:
            return Standing.decode(path.read_bytes())
        except ValueError:  # it is just being written
            time.sleep(POLL_S)
    raise NotFound(f"the gateway that has {path} is still starting")
