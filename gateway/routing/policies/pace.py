"""How fast engines are beside their model: of the last minute, the tokens that the model expected over those that came.

Pure. A calibration measures engines in a closed loop, for seconds, with one pair of lengths; traffic is not like that.
"""

import math

from gateway.core import BackendDemand, Seen

MEMORY_S = 60.0  # after which a token counts a third
DOUBT_S = 10.0  # of work by the model that stand for it, so that the first few tokens decide nothing
MOST = 1.25  # more than that is no pace but another engine: calibrate again
GRAIN = 0.05  # of a pace: smaller differences are no reason to plan otherwise


def look(seen: Seen, backend: BackendDemand, token_s: float, elapsed_s: float) -> Seen:
    """Adds what a backend has generated in `elapsed_s`, and what it should have by the seconds of a token."""
    new = backend.generated - seen.counted
    if not seen.counted or new < 0:  # the first look, or a worker has died and its count with it
        return seen._replace(counted=float(backend.generated))
    kept = math.exp(-elapsed_s / MEMORY_S)
    expected = backend.in_flight * elapsed_s / token_s
    return Seen(kept * seen.expected + expected, kept * seen.generated + new, float(backend.generated))


def find_paces(seen: tuple[Seen, Seen], tokens_per_s: tuple[float, float]) -> tuple[float, float]:
    """Returns how many times as long as by the model a step of each engine takes. `tokens_per_s`: at a usual load.

    An engine that has shown little of late is taken to be as slow as the other one. What slows one down (clocks, a busy
    host, requests that are not the model's) mostly slows both; by itself the idle one would look better than it is.
    """
    low, high = (find_pace(*each) for each in zip(seen, tokens_per_s, strict=True))
    return find_pace(seen[0], tokens_per_s[0], high), find_pace(seen[1], tokens_per_s[1], low)


def find_pace(seen: Seen, tokens_per_s: float, before: float = 1.0) -> float:
    """Returns the pace of one engine. `before`: what it is taken for as long as it has shown nothing."""
    if not seen.generated:  # also relayed answers whose engine reports no usage
        return before
    doubt = DOUBT_S * tokens_per_s
    pace = (seen.expected + doubt * before) / (seen.generated + doubt)
    return round(round(min(max(pace, 1 / MOST), MOST) / GRAIN) * GRAIN, 2)
