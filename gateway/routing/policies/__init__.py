"""The routing policies, one file each.

A policy is a pure function of what it is handed: it reads no clock and sees neither HTTP nor sockets.
"""

from collections.abc import Iterable

from gateway.core import Policy
from gateway.routing.policies.share import Share
from gateway.routing.policies.single import Single
from gateway.routing.policies.threshold import Threshold
from gateway.settings import PolicySettings, ShareSettings, ThresholdSettings


def make_policy(settings: PolicySettings | None, backends: Iterable[str]) -> Policy:
    """The policy that the settings describe; without settings, the first of the backends, which is the only choice."""
    match settings:
        case ThresholdSettings():
            return Threshold(settings)
        case ShareSettings():
            return Share(settings)
        case None:
            return Single(next(iter(backends)))
