"""The configuration and the options of a command, and the assignment that each worker process gets."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from gateway.configuration import SettingsError, default_path, load_settings
from gateway.settings import Settings

FORCED_END_S = 2  # beyond the drain time, for streams that were failed at its end
READY = b"ready"  # a worker's word
RETIRE = b"retire"  # to a worker whose successors serve


def read_settings(command: str, config: Path | None) -> Settings:
    """Reads settings from `config` or the default path. On mistakes, prints each on stderr and exits with 2."""
    path = config or default_path()
    try:
        return load_settings(path)
    except SettingsError as exc:
        click.echo("\n".join(f"crossover {command}: {path}: {problem}" for problem in exc.problems), err=True)
        sys.exit(2)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `crossover serve`. `drain_timeout_s`: how long running answers may go on after the signal."""

    log_level: str
    access_log: bool
    drain_timeout_s: int

    @property
    def end_timeout_s(self) -> int:
        """The seconds from the signal until a server closes its last connection."""
        return self.drain_timeout_s + FORCED_END_S

    def configure_logging(self, who: str = "") -> None:
        """Logs to stderr; `who` names this process among several that write there."""
        form = f"%(asctime)s %(levelname)s {who and who + ' '}%(name)s: %(message)s"
        logging.basicConfig(level=self.log_level.upper(), stream=sys.stderr, format=form)
        logging.getLogger("grpc._common").setLevel(
            logging.CRITICAL
        )  # it logs a traceback for each answer that cannot be read
        if self.log_level != "debug":
            for name in ("uvicorn.error", "httpx"):  # they log a line per start and stop, and one per probe
                logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("gateway.audit").setLevel(logging.INFO)  # who changed what is logged at any level
        if self.access_log:
            logger = logging.getLogger("uvicorn.access")
            logger.setLevel(logging.INFO)
            logger.addFilter(_drop_query)


def _drop_query(record: logging.LogRecord) -> bool:
    """Cuts the query, which may hold keys. uvicorn's arguments: client, method, path with query, version, status."""
    if isinstance(record.args, tuple):
        client, method, path, *others = record.args
        record.args = (client, method, str(path).partition("?")[0], *others)
    return True


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker gets from the supervisor: its index, and the descriptors that it inherits.

    It holds the settings and not the file's name, so that every worker lays the same plan over the map, however the
    file has changed. `leash_fd`: the worker writes READY to it, reads RETIRE from it, and ends when the supervisor's
    end is closed.
    """

    settings: Settings
    options: ServeOptions
    index: int
    map_fd: int
    listener_fd: int
    leash_fd: int
    board_fd: int
