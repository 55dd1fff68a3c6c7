"""Loads one endpoint with one workload. In: the workload. Out: Figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.arrivals import Arrivals, Kind
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import Unreachable
from loadtest.client.open_loop import Due, OpenLoop
from loadtest.client.probe import PromptLengths, probe, probe_lengths
from loadtest.client.prompts import PromptId, Work
from loadtest.client.sender import Sender
from loadtest.client.target import Target
from loadtest.client.window import WindowRule
from loadtest.decide.slo import Slo
from loadtest.results.cell import Pair, summarise
from loadtest.workload.figures import Figures, figures_of_answers, figures_of_cell

PROBED_TOKENS = 8  # of answers that only show how long prompts are
WARM_SHARE = 0.25  # of an open loop's window

MakeTrace: TypeAlias = Callable[[PromptLengths], Sequence[Due]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A closed loop of `concurrency` requests in flight, an open loop at `rate` requests per second, which changes to
    `last_rate` if that is given, or the requests of a trace. `requests`: least answers in the window of a closed loop.
    """

    target: Target
    model: str | None
    backend: str
    concurrency: int | None
    rate: float | None
    trace: MakeTrace | None
    last_rate: float | None
    kind: Kind
    tokens: int
    prompt_words: int
    requests: int
    window_s: float
    any_length: bool
    slo: Slo | None


async def measure(workload: Workload, seed: int) -> Figures:
    """Measures a workload. Raises MeasurementError; ValueError for rates and windows that cannot be."""
    if workload.window_s <= 0:
        raise ValueError("a window has a length")
    model = workload.model or await _find_model(workload.target)
    gate = AnswerGate(is_exact=not workload.any_length)
    sender = Sender(workload.target, model, "", seed, workload.prompt_words, wants_counts=True, is_exact=gate.is_exact)
    if workload.trace is not None:
        return await _measure_trace(workload, workload.trace, sender, gate)
    sender, _ = await probe(sender, gate, Work(workload.backend, PromptId(-1, 0, 0), workload.tokens))
    if workload.concurrency is not None:
        return await _measure_closed(workload, workload.concurrency, sender, gate)
    assert workload.rate is not None
    return await _measure_open(workload, workload.rate, sender, gate)


async def _find_model(target: Target) -> str:
    answer = await target.fetch("GET", "/v1/models")
    models = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(models, list) or not models or not isinstance(models[0], dict) or "id" not in models[0]:
        raise Unreachable(f"{target}/v1/models names no model: choose one with --model")
    return str(models[0]["id"])


async def _measure_closed(workload: Workload, concurrency: int, sender: Sender, gate: AnswerGate) -> Figures:
    rule = WindowRule(settle_requests=1, min_requests=2, min_s=workload.window_s, min_answers=workload.requests)
    load = ClosedLoad(workload.backend, concurrency, workload.tokens, rule)
    recording = await ClosedLoop(sender, gate, load).run()
    pair = Pair(concurrency, low_first=True, number=0)
    return figures_of_cell(summarise(recording, workload.backend, pair, workload.tokens, workload.slo))


async def _measure_open(workload: Workload, rate: float, sender: Sender, gate: AnswerGate) -> Figures:
    """Measures an open loop. A ramp begins with the window; before it the load is warmed up at its first rate."""
    window_s, warm_s = workload.window_s, WARM_SHARE * workload.window_s
    warm = Arrivals(rate, None, workload.kind, sender.seed).within(warm_s)
    measured = Arrivals(rate, workload.last_rate, workload.kind, sender.seed + 1).within(window_s)
    due = [*warm, *(warm_s + at for at in measured)]
    requests = [Due(at, workload.tokens) for at in due]
    began_at, answers = await OpenLoop(sender, gate, workload.backend).run(requests)
    start, is_ramp = began_at + warm_s, workload.last_rate is not None
    return figures_of_answers(answers, start, start + window_s, workload.slo, is_ramp=is_ramp)


async def _measure_trace(workload: Workload, make: MakeTrace, sender: Sender, gate: AnswerGate) -> Figures:
    """Measures a whole trace, from its first request to its last answer."""
    sender, prompts = await probe_lengths(sender, gate, [workload.backend] * 2, PROBED_TOKENS)
    start, answers = await OpenLoop(sender, gate, workload.backend).run(make(prompts))
    end = max(answer.finished_at or start for answer in answers)
    return figures_of_answers(answers, start, end, workload.slo, is_ramp=True)
