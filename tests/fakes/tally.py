"""The tally of a process that is the only worker."""

from gateway.metrics.tally import Backends, Tally
from gateway.shared import Seat


def make_tally(backends: Backends) -> Tally:
    return Tally(backends, Seat.alone())
