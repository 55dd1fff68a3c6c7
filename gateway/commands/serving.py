"""How a gateway is to be served: what the command line said, and what each worker process is told."""

import logging
import sys
from dataclasses import dataclass

from gateway.settings import Settings

FORCED_END_S = 2  # beyond the drain time, for streams that have been told to end
READY = b"ready"


@dataclass(frozen=True, slots=True)
class Serving:
    """`drain_timeout_s`: how long running answers may take to end once the gateway is told to."""

    log_level: str
    access_log: bool
    drain_timeout_s: int

    @property
    def end_timeout_s(self) -> int:
        """After so long a server that was told to end has cut off what is left."""
        return self.drain_timeout_s + FORCED_END_S

    def configure_logging(self, who: str = "") -> None:
        """On stderr; `who`: which of several processes that write there."""
        form = f"%(asctime)s %(levelname)s {who and who + ' '}%(name)s: %(message)s"
        logging.basicConfig(level=self.log_level.upper(), stream=sys.stderr, format=form)
        logging.getLogger("grpc._common").setLevel(logging.CRITICAL)  # a traceback for each answer that cannot be read
        if self.log_level != "debug":
            for name in ("uvicorn.error", "httpx"):  # one line per start and stop, one per probe
                logging.getLogger(name).setLevel(logging.WARNING)
        if self.access_log:
            logger = logging.getLogger("uvicorn.access")
            logger.setLevel(logging.INFO)
            logger.addFilter(_drop_query)


def _drop_query(record: logging.LogRecord) -> bool:
    """Some clients send keys there. uvicorn's arguments: client, method, path with its query, version, status."""
    if isinstance(record.args, tuple):
        client, method, path, *others = record.args
        record.args = (client, method, str(path).partition("?")[0], *others)
    return True


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the supervisor tells a worker: who it is, and the descriptors that it inherits.

    The settings come with it, not the file's name: every worker lays the same plan over the map, whatever has become of
    the file. `leash_fd`: the worker says READY on it, and ends when the supervisor's end is closed.
    """

    settings: Settings
    serving: Serving
    index: int
    map_fd: int
    listener_fd: int
    leash_fd: int

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.map_fd, self.listener_fd, self.leash_fd
