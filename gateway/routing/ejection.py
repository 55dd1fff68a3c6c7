"""Which backends of a model get no requests although their health pages are green: those that fail, and those that are
stuck.

In: how requests ended, and once a beat what runs. Out: the backends that a request should avoid. Knows no policy.
"""

from collections.abc import Callable, Collection, Mapping

from gateway.errors import GatewayError
from gateway.flow import ModelFlow
from gateway.routing.conduct import Stage
from gateway.routing.health import Health
from gateway.routing.ledger import Ledger
from gateway.routing.stall import LEAST_S, Stall


class Ejection:
    """One model's, as this worker sees it. `chosen_from`: the backends that may stand in for each other."""

    def __init__(
        self,
        healths: Mapping[str, Health],
        chosen_from: Collection[str],
        ledger: Ledger,
        clock: Callable[[], float],
        *,
        is_on: bool,
    ) -> None:
        self._healths = healths
        self._chosen_from = chosen_from
        self._ledger = ledger
        self._clock = clock
        self._is_on = is_on
        self.suspects: set[str] = set()  # ejected, or on trial
        self._stalls = {name: Stall() for name in chosen_from}

    def note_end(self, name: str, fault: GatewayError | None) -> None:
        """Notes how a request ended at a backend: with a fault of its own, or well.

        A backend where most of them fail is ejected while another serves.
        """
        conduct = self._healths[name].conduct
        if fault is None:
            conduct.succeed(self._clock())
            if self.suspects and conduct.stage is Stage.IN:
                self.suspects.discard(name)
            return
        conduct.fail(self._clock())
        if self._is_on and conduct.stage is Stage.IN and conduct.is_sick(self._clock()) and self._other_serves(name):
            self._eject(name, f"most of its requests fail, the last one with: {fault.message}")

    def retract_fault(self, name: str) -> None:
        """Holds the last fault not against the backend: the request failed at another one too."""
        self._healths[name].conduct.retract(self._clock())

    def note_placed(self, name: str) -> None:
        """Notes that a backend got a request, which may be one of its trial."""
        if name in self.suspects:
            self._healths[name].conduct.took(self._clock())

    def may_take(self, name: str) -> bool:
        """Whether a backend may get a request now, another one being ready."""
        return name not in self.suspects or self._healths[name].conduct.may_take(self._clock())

    def bar(self, avoid: Collection[str]) -> Collection[str]:
        """Returns `avoid` with the backends that are ejected or have had a trial just now, while another is ready."""
        barred = {name for name in self.suspects if not self.may_take(name)}.union(avoid)
        is_any_ready = any(health.is_ready and name not in barred for name, health in self._healths.items())
        return barred if is_any_ready else avoid

    def find_stuck(self, flow: ModelFlow, find_step_s: Callable[[str, int, float], float | None]) -> Collection[str]:
        """Ejects the backends whose streams have had no token for far too long, and returns them. Once a beat.

        `find_step_s`: the longest step that is predicted of a backend beside so many streams and prompt tokens that
        wait.
        """
        stuck = []
        for name, stall in self._stalls.items():
            if stall.note(flow, name):
                self._ledger.hear(name, self._clock())
            elif stall.silent_s >= LEAST_S and self._is_stuck(name, stall, find_step_s):
                count = f"none of {stall.streams} streams has had a token for {stall.silent_s:.1f} s"
                self._eject(name, count)
                stall.found_stuck()
                stuck.append(name)
        return stuck

    def _is_stuck(self, name: str, stall: Stall, find_step_s: Callable[[str, int, float], float | None]) -> bool:
        if not self._is_on or self._healths[name].conduct.stage is Stage.OUT or not self._other_serves(name):
            return False
        streams = self._ledger.read().in_flight[name]  # of all workers, whose prompts this one does not know
        waiting = stall.waiting * max(streams / stall.streams, 1.0)
        silent_s = min(stall.silent_s, self._ledger.find_silence(name, self._clock()))
        return stall.is_over(silent_s, find_step_s(name, streams, waiting), waiting)

    def _eject(self, name: str, why: str) -> None:
        self._healths[name].eject(why)
        self.suspects.add(name)

    def _other_serves(self, name: str) -> bool:
        others = [other for other in self._chosen_from if other != name and other not in self._ledger.draining]
        ready = [health.conduct for other in others if (health := self._healths[other]).is_ready]
        return any(conduct.stage is Stage.IN and not conduct.is_sick(self._clock()) for conduct in ready)
