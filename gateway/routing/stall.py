"""How long a backend's streams have had no token. Pure.

In: a worker's streams at a backend, once a beat. Out: seconds of silence, and how long is far too long. Silence is
counted in beats: where the worker itself was held up, tokens wait unread.
"""

from gateway.flow import Flow
from gateway.routing.demand import BEAT_S

LEAST_S = 1.0  # of silence, before anything is concluded
STEPS = 3.0  # predicted ones: the prefill that waits may all be in one
GAPS = 20.0  # usual gaps between the tokens of a stream, where no step is predicted
UNKNOWN_S = 20.0  # where no token has come yet: an engine compiles kernels for its first requests
SLOWEST_PREFILL = 1000.0  # tokens a second, where none is predicted
GAP_WEIGHT = 0.05  # of a beat


class Stall:
    """One backend's. `waiting`: the prompt tokens of streams without a token."""

    def __init__(self) -> None:
        self.streams = 0
        self.waiting = 0
        self._beats = 0  # of silence
        self._generated = 0
        self._gap_s = 0.0

    @property
    def silent_s(self) -> float:
        return self._beats * BEAT_S

    def note(self, flows: tuple[Flow, ...]) -> None:
        streams = decoding = generated = waiting = 0
        for flow in flows:
            streams += flow.streams
            decoding += flow.decoding
            generated += flow.generated
            waiting += flow.coming
        came, self._generated = generated - self._generated, generated
        if came:
            gap_s = BEAT_S * max(decoding, 1) / came
            self._gap_s += GAP_WEIGHT * (gap_s - self._gap_s) if self._gap_s else gap_s
        self._beats = self._beats + 1 if streams and not came else 0
        self.streams, self.waiting = streams, waiting

    def is_over(self, step_s: float | None, waiting: float) -> bool:
        """Whether the silence is over what it may be. `step_s`: the longest step that is predicted; `waiting`: the
        prompt tokens that all workers' streams wait for.
        """
        if step_s is not None:
            return self.silent_s > max(LEAST_S, STEPS * step_s)
        usual_s = GAPS * self._gap_s if self._gap_s else UNKNOWN_S
        return self.silent_s > max(LEAST_S, usual_s + waiting / SLOWEST_PREFILL)
