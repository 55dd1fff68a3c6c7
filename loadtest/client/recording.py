"""Everything that one cell's streams and processes observed."""

from dataclasses import dataclass

from loadtest.client.streamed_answer import StreamedAnswer


@dataclass(frozen=True, slots=True)
class Tick:
    """The client's own state at one moment: how late its event loop was, CPU seconds used so far, load average of its
    machine per core. `process`: which of the client's processes recorded it.
    """

    at: float
    lag_s: float
    cpu_s: float
    machine_load: float
    process: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of all streams in the order of their starts: complete ones, and those cut off when the window closed."""

    opened_at: float
    closed_at: float
    answers: tuple[StreamedAnswer, ...]
    ticks: tuple[Tick, ...]

    @property
    def window_s(self) -> float:
        return self.closed_at - self.opened_at

    def holds(self, at: float) -> bool:
        """Whether `at`, a time of the answers' clock, lies in the window."""
        return self.opened_at <= at <= self.closed_at
