"""When computed tokens leave: at once. paced_outlet.py has the other way.

In: arrivals, departures and computed tokens, from any thread. Out: tokens through `hand_out`, and which requests the
engine should step next. Knows no engine and no wire.
"""

from collections.abc import Callable, Collection, Sequence

from engines.reference.engine import EngineLoad, TokenOutput

HandOut = Callable[[Sequence[TokenOutput]], None]


class Outlet:
    """Stands between the engine's steps and the receivers. Here every step's tokens leave as soon as it ends."""

    def start(self, hand_out: HandOut, wake_engine: Callable[[], None]) -> None:
        self._hand_out = hand_out

    def close(self) -> None: ...

    def arrive(self, request_id: str, prompt: Sequence[int], tokens: int) -> None:
        """A request has arrived that has so many tokens at most."""

    def leave(self, request_id: str) -> None: ...

    def wanted(self) -> Collection[str] | None:
        """The requests to step now: none if empty, all that the engine holds if None."""
        return None

    def computed(self, outputs: Sequence[TokenOutput]) -> None:
        self._hand_out(outputs)

    def describe(self, load: EngineLoad) -> EngineLoad:
        """Returns the engine's load as clients see it."""
        return load
