"""A beat for as long as nothing is heard: what tells a client, and every proxy before it, that a silent stream lives.

In: when something was last heard. Out: a call each time that is too long ago. One timer for each stream that wants it,
none for a token.
"""

import asyncio
from collections.abc import Callable


class Pulse:
    """Calls `beat` after `seconds` without anything `heard`, and again after as many more; on `clock`."""

    def __init__(
        self, seconds: float, heard: Callable[[], float], clock: Callable[[], float], beat: Callable[[], None]
    ) -> None:
        self._seconds = seconds
        self._heard = heard
        self._clock = clock
        self._beat = beat
        self._last_beat = 0.0
        self._timer: asyncio.TimerHandle

    def start(self) -> None:
        self._last_beat = self._clock()
        self._wait(self._seconds)

    def stop(self) -> None:
        """Beats no more; once started."""
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = self._clock()
        silent_s = now - max(self._heard(), self._last_beat)
        if silent_s < self._seconds:
            self._wait(self._seconds - silent_s)
            return
        self._last_beat = now
        self._wait(self._seconds)  # before the beat, which may be what ends this
        self._beat()
