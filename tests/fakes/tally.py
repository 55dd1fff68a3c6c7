"""The tally of a process that is the only worker."""

from gateway.metrics.tally import Backends, Tally, TallySpans
from gateway.shared import Plan, Seat


def make_tally(backends: Backends) -> Tally:
    plan = Plan()
    spans = TallySpans.lay(plan, backends, workers=1)
    return Tally(backends, spans, Seat.alone(plan.size))
