"""The routing policies, one file each; a kind in crossover.yaml is a key here.

A policy is a pure function of what it is handed: it reads no clock and sees neither HTTP nor sockets.
"""

from collections.abc import Callable, Iterable, Mapping

from gateway.core import Policy
from gateway.routing.policies.single import Single
from gateway.routing.policies.threshold import Threshold
from gateway.settings import ThresholdSettings

POLICIES: Mapping[str, Callable[[ThresholdSettings], Policy]] = {"threshold": Threshold}


def make_policy(settings: ThresholdSettings | None, backends: Iterable[str]) -> Policy:
    """The policy that the settings describe; without settings, the first of the backends, which is the only choice."""
    if settings is None:
        return Single(next(iter(backends)))
    return POLICIES[settings.kind](settings)
