"""The gateway's metrics for Prometheus. Names, labels and meanings: docs/metrics.md."""

from gateway.metrics.arrivals import ArrivalsFile
from gateway.metrics.observation import BEGUN_AGAIN, CANCELLED, MOVED, Observation
from gateway.metrics.processes import note_tasks
from gateway.metrics.registry import CONTENT_TYPE, Metrics
from gateway.metrics.tally import Tally

__all__ = [
    "BEGUN_AGAIN",
    "CANCELLED",
    "CONTENT_TYPE",
    "MOVED",
    "ArrivalsFile",
    "Metrics",
    "Observation",
    "Tally",
    "note_tasks",
]
