"""How long an engine takes for answers that arrive by their own times, simulated step by step. Pure.

In: an engine's model, and arrivals with their lengths. Out: each answer's seconds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engines.physics import EngineModel, Job, Replica


class Arrival(NamedTuple):
    """`at`: seconds after the beginning; lengths in tokens."""

    at: float
    prompt_tokens: int
    tokens: int


def serve(engine: EngineModel, arrivals: Sequence[Arrival]) -> list[float]:
    """Serves arrivals, which are in order, by the replica with the fewest. Returns the seconds of each answer."""
    half_s = engine.request_ms / 2e3
    replicas = [Replica(engine) for _ in range(engine.replicas)]
    due: dict[Replica, float] = {}  # of those that work: when the step under way ends
    jobs = [Job(arrival.at, arrival.prompt_tokens, arrival.tokens) for arrival in arrivals]
    coming = iter(jobs)
    job = next(coming, None)
    while job is not None or due:
        replica = min(due, key=due.__getitem__, default=None)
        if job is not None and (replica is None or job.at + half_s <= due[replica]):
            replica, now = min(replicas, key=len), job.at + half_s
            replica.add(job)
            job = next(coming, None)
            if replica in due:
                continue
        else:
            assert replica is not None  # without a job to come there is one at work
            now = due.pop(replica)
            replica.end(now)
        if step_ms := replica.begin():
            due[replica] = now + step_ms / 1e3
    return [(each.end_s or 0.0) + half_s - each.at for each in jobs]
