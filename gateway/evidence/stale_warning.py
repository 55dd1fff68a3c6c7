"""Logs once when a model's engines are no longer those its policy was measured on, and once when they are again.

In: the present differences. Out: log lines.
"""

import logging
from collections.abc import Sequence

from gateway.evidence.fingerprint import Change

logger = logging.getLogger(__name__)


class StaleWarning:
    """Remembers, for every model of the gateway, what was logged last."""

    def __init__(self) -> None:
        self._known: dict[str, Sequence[Change]] = {}

    def feed(self, model: str, changes: Sequence[Change]) -> None:
        if changes == self._known.get(model, ()):
            return
        self._known[model] = changes
        if changes:
            logger.warning(
                "the policy of %s was measured on other engines than it steers now (%s); measure again with "
                "`crossover calibrate --apply`",
                model,
                "; ".join(map(str, changes)),
            )
        else:
            logger.info("the engines of %s are those its policy was measured on, or it was set by hand", model)
