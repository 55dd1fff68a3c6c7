"""Lengths of the streams' first answers, and when a cell's measurement opens and closes. Pure.

No clock and no guess of how long a request takes: the progress of the leading stream is the measure.
"""

from dataclasses import dataclass


def first_lengths(level: int, tokens: int) -> tuple[int, ...]:
    """Returns the tokens of each stream's first answer, evenly spread up to `tokens` for the last stream, the leader.

    Streams of equal work that begin together stay together for ever, and every time to first token is then that of a
    burst. In a continuous batch all streams advance alike. So answers of staggered lengths end evenly spread over one
    request time, and the measured requests after them begin evenly spread, however long that time is under this load.
    """
    return tuple(-(-tokens * (stream + 1) // level) for stream in range(level))


@dataclass(frozen=True, slots=True)
class WindowRule:
    """A window's rule. `settle_requests`: the leading stream's requests between its warm-up request and the window,
    which holds at least `min_requests` of that stream, `min_answers` of all streams together, and `min_s` seconds.
    """

    settle_requests: int
    min_requests: int
    min_s: float
    min_answers: int = 0


@dataclass(slots=True)
class Window:
    """Opens and closes where the leading stream finishes a request.

    So it holds a whole number of request times, and what its edges cut off other streams cancels out.
    """

    rule: WindowRule
    opened_at: float | None = None
    closed_at: float | None = None
    _requests: int = 0
    _answers: int = 0

    def count_answer(self, at: float) -> None:
        """Counts an answer of any stream. Comes before `count_leader_request` where it is the leader's."""
        if self.opened_at is not None and at > self.opened_at:
            self._answers += 1

    def count_leader_request(self, at: float) -> bool:
        """Counts one more finished request of the leader. Returns whether that closes the window."""
        self._requests += 1
        inside = self._requests - 1 - self.rule.settle_requests
        if inside == 0:
            self.opened_at = at
        is_enough = inside >= self.rule.min_requests and self._answers >= self.rule.min_answers
        if self.opened_at is not None and is_enough and at - self.opened_at >= self.rule.min_s:
            self.closed_at = at
        return self.closed_at is not None
