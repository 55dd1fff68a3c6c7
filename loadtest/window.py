"""How long the streams' first answers are and when a cell's measurement opens and closes. Pure.

No clock and no guess of how long a request takes: the leading stream's own progress is the measure.
"""

from dataclasses import dataclass


def first_lengths(level: int, tokens: int) -> tuple[int, ...]:
    """Tokens of each stream's first answer: evenly spread up to `tokens`, which the last stream, the leader, gets.

    Streams of equal work that begin together stay together for ever, and every time to first token is then that of a
    burst. In a continuous batch all streams advance alike, so answers of staggered lengths end, and the measured ones
    after them begin, evenly spread over one request time, whatever that turns out to be under this load.
    """
    return tuple(-(-tokens * (stream + 1) // level) for stream in range(level))


@dataclass(slots=True)
class Window:
    """Opens and closes where the leading stream finishes a request.

    So it holds a whole number of request times, and what its edges cut off of other streams adds up to nothing. The
    leader's first request is warm-up, and so are `settle_requests` more. It does not close before the leader has
    finished `min_requests`, `min_s` seconds are over, and all streams together have finished `min_answers`.
    """

    settle_requests: int
    min_requests: int
    min_s: float
    min_answers: int = 0
    opened_at: float | None = None
    closed_at: float | None = None
    _passed: int = 0
    _answers: int = 0

    def pass_answer(self, at: float) -> None:
        """Some stream's answer has ended; the leader's is told here before it is to `pass_request`."""
        if self.opened_at is not None and at > self.opened_at:
            self._answers += 1

    def pass_request(self, at: float) -> bool:
        """The leader has finished one more request. True when that closes the window."""
        self._passed += 1
        inside = self._passed - 1 - self.settle_requests
        if inside == 0:
            self.opened_at = at
        is_enough = inside >= self.min_requests and self._answers >= self.min_answers
        if self.opened_at is not None and is_enough and at - self.opened_at >= self.min_s:
            self.closed_at = at
        return self.closed_at is not None
