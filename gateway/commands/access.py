"""What `crossover serve` checks before it starts: that the keys can be read, and that nothing is open by oversight.

In: settings. Out: the reason not to start, or a warning in the log. Knows no request.
"""

import logging

from gateway.access import KeyFile, KeyFileUnreadable, Keyring
from gateway.address import is_loopback
from gateway.settings import Settings

FAILED, MISTAKEN = 1, 2  # exit codes
OPEN = "everyone who reaches {} may use it, because there are no keys for inference"
CURE = "create one (crossover keys create), or set allow_anonymous: true (or --allow-anonymous)"

logger = logging.getLogger(__name__)


class CannotStart(Exception):
    """`code`: the exit code of a gateway that does not start, for these reasons."""

    def __init__(self, code: int, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.code = code
        self.problems = problems


def check_access(settings: Settings, *, warns: bool = True) -> None:
    """Raises CannotStart for keys that cannot be read, and for a gateway that would be open beyond this machine.

    `warns`: of one that may be.
    """
    try:
        keyring = Keyring(settings.operator_key, KeyFile(settings.state_folder))
    except KeyFileUnreadable as exc:
        raise CannotStart(FAILED, str(exc)) from exc
    if keyring.guards_inference or is_loopback(settings.listen_host):
        return
    warning = OPEN.format(settings.listen)
    if not settings.allow_anonymous:
        raise CannotStart(MISTAKEN, f"{warning}: {CURE}")
    if warns:
        logger.warning("%s (allow_anonymous)", warning)
