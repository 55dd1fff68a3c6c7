"""The gateway's own Prometheus registry: users' traffic apart from load-test runs', and what other rooms add.

In: observations when they end, refusals. Out: the exposition text.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from gateway.core import GenerateRequest, Placeable, RelayOutcome, Route, Sink
from gateway.errors import GatewayError
from gateway.flow import Flow, ModelFlow
from gateway.lengths import Lengths
from gateway.metrics.arrivals import ArrivalsFile
from gateway.metrics.observation import FINISHED, Observation
from gateway.metrics.processes import WorkerCollector, note_tasks
from gateway.metrics.tally import Pair, Tally
from gateway.metrics.traffic import TrafficCollector
from gateway.shared import Roster

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # what generate_latest writes unless asked otherwise


class Timing(Protocol):
    """The times at which the first and the last token of an answer came; `first` None: no token came."""

    first: float | None
    last: float


class Metrics:
    """One worker's counts, and the whole node's numbers, whichever worker is asked.

    `flows`: by model, where answers under way are counted and routing reads them. `roster` names the node's workers.
    `arrivals` keeps users' requests that were answered.
    """

    def __init__(
        self,
        tally: Tally,
        flows: Mapping[str, ModelFlow],
        roster: Roster,
        clock: Callable[[], float] = time.monotonic,
        arrivals: ArrivalsFile | None = None,
    ) -> None:
        self.clock = clock
        self.arrivals = arrivals or ArrivalsFile(None)
        self._tally = tally
        self._flows = flows
        self._registry = CollectorRegistry()  # which asks no collector for its names before the first scrape
        self.add(TrafficCollector(tally))
        self.add(WorkerCollector(roster.read, tally.tasks))

    def add(self, collector: Collector) -> None:
        """Collects another room's figures too at each scrape."""
        self._registry.register(collector)

    def observe(
        self,
        request: GenerateRequest,
        route: Route,
        sink: Sink,
        arrived: float | None = None,
        before: Observation | None = None,
    ) -> Observation:
        """Returns a sink in front of `sink` that counts and times one attempt on one backend.

        `arrived`: when the request came in, on this object's `clock`; now, if not given. Latencies start there.
        `before`: the attempt on another backend that this one goes on with.
        """
        observation = Observation(request, route, sink, self, self.clock() if arrived is None else arrived)
        if before is not None:
            observation.follow(before)
        return observation

    def record(self, seen: Observation, outcome: str) -> None:
        """Counts an attempt that has ended; Observation calls it."""
        request, pair = seen.request, self._tally.pairs[seen.request.model, seen.route.backend]
        is_run = request.run is not None
        traffic, prompt_tokens = pair.runs if is_run else pair.users, len(request.prompt)
        if seen.is_moved:  # its first attempt has counted the prompt
            self._tally.count_move(traffic, prompt_tokens)
            prompt_tokens = 0
        self._tally.count(traffic, outcome, prompt_tokens, len(seen.token_ids) - seen.earlier)
        if not is_run:  # a calibration's latencies are not those that users get
            if seen.first is not None and not seen.earlier:
                self._tally.observe(pair.ttft, seen.first - seen.started)
            if outcome in FINISHED:
                self._time(pair, seen, seen.started, len(seen.token_ids))
                self._note(request.model, seen.started, request.prompt.token_ids, len(seen.token_ids), seen.earlier)

    def find_flow(self, request: GenerateRequest, backend: str, *, is_fixed: bool) -> Flow:
        """Returns where an answer is counted while it is under way."""
        flow = self._flows[request.model]
        if request.pin is None:
            return (flow.fixed if is_fixed else flow.free)[backend]
        return flow.fixed[backend] if request.run is None else flow.ignored

    def find_lengths(self, request: GenerateRequest) -> Lengths:
        flow = self._flows[request.model]
        return flow.lengths if request.pin is None or request.run is None else flow.ignored_lengths

    def relaying(self, request: Placeable, route: Route) -> None:
        """One attempt on the relay lane begins; `relayed` ends it."""
        if request.pin is None or request.run is None:
            self._flows[request.model].relayed[route.backend] += 1

    def relayed(self, request: Placeable, route: Route, arrived: float, seen: RelayOutcome, outcome: str) -> None:
        """Counts one attempt on the relay lane, at its end; `arrived` is on this object's clock."""
        prompt_tokens, completion_tokens = seen.usage
        pair = self._tally.pairs[request.model, route.backend]
        if request.pin is None or request.run is None:
            self._flows[request.model].relayed[route.backend] -= 1
        if request.run is not None:
            self._tally.count(pair.runs, outcome, prompt_tokens, completion_tokens, seen.events)
            return
        self._tally.count(pair.users, outcome, prompt_tokens, completion_tokens, seen.events)
        if seen.first is not None:
            self._tally.observe(pair.ttft, seen.first - arrived)
        if outcome in FINISHED:
            self._time(pair, seen, arrived, completion_tokens)
            self._note(request.model, arrived, prompt_tokens, completion_tokens)

    def refuse(self, error: GatewayError) -> None:
        """Counts a request that ended before it had a backend; labelled by the error's code, so the labels are few."""
        self._tally.refuse(error.code)

    def render(self) -> bytes:
        """Returns the exposition text, in the form of CONTENT_TYPE."""
        note_tasks(self._tally)
        return generate_latest(self._registry)

    def _note(self, model: str, arrived: float, prompt: int | tuple[int, ...], tokens: int, earlier: int = 0) -> None:
        """`earlier`: how many ids at the end of the prompt belong to the answer."""
        if self.arrivals.is_kept and prompt and tokens:  # a relayed answer need not report them
            own = prompt if isinstance(prompt, int) else prompt[: len(prompt) - earlier]
            self.arrivals.note(time.time() - self.clock() + arrived, model, own, tokens)

    def _time(self, pair: Pair, seen: Timing, started: float, tokens: int) -> None:
        """Notes E2E and TPOT of a finished answer of so many tokens."""
        if seen.first is None:
            return
        self._tally.observe(pair.e2e, seen.last - started)
        if tokens > 1 and seen.last > seen.first:  # an answer in one piece has no time per token
            self._tally.observe(pair.tpot, (seen.last - seen.first) / (tokens - 1))
