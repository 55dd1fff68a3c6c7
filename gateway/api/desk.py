"""What both lanes work with beside their own backends."""

from dataclasses import dataclass

from gateway.metrics import Metrics
from gateway.routing import Router
from gateway.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Desk:
    router: Router
    metrics: Metrics
    streams: StreamSettings
