"""What `crossover serve` checks before it starts: that the keys can be read, and that nothing is open by oversight.

In: settings. Out: an exit with one line on stderr, or a warning in the log. Knows no request.
"""

import logging
import sys

import click

from gateway.access import KeyFile, KeyFileUnreadable, Keyring
from gateway.address import is_loopback
from gateway.settings import Settings

OPEN = "everyone who reaches {} may use it, because there are no keys for inference"

logger = logging.getLogger(__name__)


def check_access(settings: Settings) -> None:
    """Exits with 1 for keys that cannot be read, with 2 for a gateway that would be open beyond this machine."""
    try:
        keyring = Keyring(settings.operator_key, KeyFile(settings.state_folder))
    except KeyFileUnreadable as exc:
        click.echo(f"crossover serve: {exc}", err=True)
        sys.exit(1)
    if keyring.guards_inference or is_loopback(settings.listen_host):
        return
    warning = OPEN.format(settings.listen)
    if not settings.allow_anonymous:
        cure = "create one (crossover keys create), or set allow_anonymous: true (or --allow-anonymous)"
        click.echo(f"crossover serve: {warning}: {cure}", err=True)
        sys.exit(2)
    logger.warning("%s (allow_anonymous)", warning)
