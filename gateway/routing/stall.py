"""How long a backend's streams have had no token. Pure.

In: a worker's streams at a backend, once a beat. Out: seconds of silence, and how long is far too long. Silence is
counted in beats: where the worker itself was held up, tokens wait unread.
"""

from gateway.flow import ModelFlow
from gateway.routing.demand import BEAT_S

LEAST_S = 1.0  # of silence, before anything is concluded
LEAST_FIRST_S = 3.0  # where all wait for their first tokens: a form, or a shape of a batch, may be compiled for them
STEPS = 3.0  # predicted ones: the prefill that waits may all be in one
PAUSES = 20.0  # usual pauses between tokens of any stream, where no step is predicted
UNKNOWN_S = 20.0  # where no token has come yet: an engine compiles kernels for its first requests
SLOWEST_PREFILL = 1000.0  # tokens a second, where none is predicted
PAUSE_WEIGHT = 0.05  # of a pause


class Stall:
    """One backend's. `waiting`: the prompt tokens of streams without a token."""

    def __init__(self) -> None:
        self.streams = 0
        self.waiting = 0
        self._kept = 0  # streams that a stuck engine keeps: they show nothing of it afterwards
        self._decoding = 0
        self._beats = 0  # of silence
        self._generated = 0
        self._pause_s = 0.0

    @property
    def silent_s(self) -> float:
        return self._beats * BEAT_S

    def note(self, flow: ModelFlow, backend: str) -> bool:
        """Returns whether tokens have come since the beat before. True where nobody can tell: relayed answers, and runs
        that chose their backend, may be what the engine is busy with.
        """
        free, fixed = flow.free[backend], flow.fixed[backend]
        generated = free.generated + fixed.generated
        came, self._generated = generated - self._generated, generated
        if came:
            pause_s = BEAT_S * (self._beats + 1)
            self._pause_s += PAUSE_WEIGHT * (pause_s - self._pause_s) if self._pause_s else pause_s
        self.streams, self.waiting = free.streams + fixed.streams, free.coming + fixed.coming
        self._kept, self._decoding = min(self._kept, self.streams), free.decoding + fixed.decoding
        is_heard = bool(came or flow.relayed[backend] or flow.ignored.streams)
        self._beats = self._beats + 1 if self.streams > self._kept and not is_heard else 0
        return is_heard

    def found_stuck(self) -> None:
        """Counts anew, and not those streams that do not go elsewhere now."""
        self._beats, self._kept = 0, self.streams

    def is_over(self, silent_s: float, step_s: float | None, waiting: float) -> bool:
        """Whether a silence is over what it may be. `step_s`: the longest step that is predicted; `waiting`: the prompt
        tokens that all workers' streams wait for.
        """
        least_s = LEAST_S if self._decoding else LEAST_FIRST_S
        if step_s is not None:
            return silent_s > max(least_s, STEPS * step_s)
        usual_s = PAUSES * self._pause_s if self._pause_s else UNKNOWN_S
        return silent_s > max(least_s, usual_s + waiting / SLOWEST_PREFILL)
