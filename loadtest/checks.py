"""What makes an answer unfit to count, which ends the run, or a cell, which the report then warns of. Pure."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtest.answer import Answer
from loadtest.cell import Cell
from loadtest.curves import make_trials, null_gains
from loadtest.decide.estimate import Estimate, estimate, quantile
from loadtest.errors import Misrouted, RequestFailed, UnequalWork
from loadtest.stats import P90_SAMPLES, P99_SAMPLES
from loadtest.work import Asked, Place

MAX_CLIENT_CPU = 0.7
MIN_IN_FLIGHT = 0.98
MAX_FILL_GAP = 0.1
MAX_MACHINE_LOAD = 2.0  # per core, mean of the last minute
MAX_PAUSE = 0.05  # of the window
MAX_PHASE_ORDER = 0.5
SPREAD_LEVEL = 8  # below this, few streams are bunched by chance
MIN_EVENNESS = 0.6
MAX_CHUNKING_GAP = 0.02
MAX_REPEAT_SD = 0.03
ORDER_ALPHA = NULL_ALPHA = 0.05


@dataclass(slots=True)
class Judge:
    """Every answer passes here. Remembers prompt tokens by place, to hold one backend's against the other's.

    `is_exact`: answers have as many tokens as asked for.
    """

    is_exact: bool = True
    answers: int = 0
    tokens: int = 0
    _prompts: dict[Place, tuple[str, int]] = field(default_factory=dict)

    def accept(self, answer: Answer, asked: Asked) -> None:
        """Raises Untrusted, with what an operator can do about it."""
        self._check_success(answer, asked)
        if asked.backend:
            _check_route(answer, asked)
        if self.is_exact:
            _check_work(answer, asked)
        self._check_prompt(answer, asked)
        self.answers += 1
        self.tokens += asked.tokens

    def _check_success(self, answer: Answer, asked: Asked) -> None:
        if answer.error:
            raise RequestFailed(f"REQUEST FAILED: {asked.server} answered an error: {answer.error}")
        if answer.finish_reason is None:
            raise RequestFailed(f"REQUEST FAILED: {asked.server} ended its stream without a finish_reason")
        if answer.completion_tokens is None or answer.prompt_tokens is None:
            raise RequestFailed(
                f"NO USAGE: {asked.server} sent no token counts although include_usage was asked; none are estimated."
            )

    def _check_prompt(self, answer: Answer, asked: Asked) -> None:
        count = answer.prompt_tokens or 0
        other, expected = self._prompts.pop(asked.place, (asked.backend, count))
        if count != expected:
            raise UnequalWork(
                f"UNEQUAL WORK: the same prompt was {count} tokens on {asked.backend} and {expected} on {other}; "
                "both must serve the same tokenizer and chat template."
            )
        if other == asked.backend:
            self._prompts[asked.place] = (asked.backend, count)


def _check_route(answer: Answer, asked: Asked) -> None:
    if answer.backend != asked.backend:
        served = answer.backend or "an unnamed backend (no x-crossover-backend header)"
        raise Misrouted(f"MISROUTED: a request pinned to {asked.backend} was served by {served}.")


def _check_work(answer: Answer, asked: Asked) -> None:
    if answer.completion_tokens != asked.tokens or answer.finish_reason != "length":
        raise UnequalWork(
            f"UNEQUAL WORK: {asked.server} returned {answer.completion_tokens} of {asked.tokens} tokens "
            f"(finish={answer.finish_reason}); check ignore_eos/min_tokens support in this version."
        )


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `status`: passed, note, warning (the threshold stands), or failed (there is none)."""

    name: str
    status: str
    message: str


def review(cells: Sequence[Cell], judge: Judge, low: str) -> list[Check]:
    """What the whole run shows about its own soundness; `low` names the backend that ratios have above the line."""
    return [
        _claim("equal work", judge, "exactly as many tokens as asked"),
        _claim("routing", judge, "by the backend it was pinned to"),
        _summary("client headroom", _client_bound(cells), "event loop and CPU had room in every cell"),
        _summary("steady load", filter(None, map(find_flaw, cells)), "every window held its level without a pause"),
        _summary("quiet machine", _busy(cells), "this client's machine was not overloaded"),
        _summary("no lockstep", _lockstep(cells), "starts were spread over the request time"),
        _summary("chunking", _chunking(cells), "both backends send as many tokens per chunk"),
        *_check_repeats(estimate(make_trials(cells, low)), null_gains(cells)),
        Check("percentiles", "note", f"p90 needs {P90_SAMPLES} samples, p99 {P99_SAMPLES}; n/a where there are fewer"),
    ]


def _claim(name: str, judge: Judge, claim: str) -> Check:
    """What holds of every answer that the judge let pass; of none, nothing is claimed."""
    if not judge.answers:
        return Check(name, "note", "there were no answers to judge")
    return Check(name, "passed", f"{judge.answers} answers, every one {claim}")


def _summary(name: str, problems: Iterator[str], fine: str) -> Check:
    """The first problem stands for all of its kind."""
    messages = list(problems)
    if not messages:
        return Check(name, "passed", fine)
    more = f" And in {len(messages) - 1} more." if len(messages) > 1 else ""
    return Check(name, "warning", messages[0] + more)


def _check_repeats(known: Estimate | None, nulls: Sequence[float]) -> Iterator[Check]:
    if known is None:
        yield Check("repeatable", "warning", "no level was measured twice: nothing tells a difference from chance.")
        return
    status = "passed" if known.pair_sd <= MAX_REPEAT_SD else "warning"
    yield Check("repeatable", status, f"one throughput ratio repeats to {known.pair_sd:.1%} (standard deviation)")
    yield _check_order(known)
    yield _check_nulls(known, nulls)


def _check_order(known: Estimate) -> Check:
    """Twice the effect is what the ratio would change by if the other backend came first in every pair."""
    reach = quantile(ORDER_ALPHA, known.dof) * math.sqrt(known.order_variance)
    shown = f"being measured first is worth {known.order_effect:+.1%} (+-{reach:.1%})"
    if abs(known.order_effect) <= reach:
        return Check("order", "passed", shown)
    return Check("order", "note", f"{shown}; pairs in both orders cancel it.")


def _check_nulls(known: Estimate, nulls: Sequence[float]) -> Check:
    """A backend against itself: what is seen there is no difference between backends."""
    if not nulls:
        return Check("null", "note", "no backend was measured against itself; full runs do.")
    mean = statistics.fmean(nulls)
    reach = quantile(NULL_ALPHA, known.dof) * known.pair_sd / math.sqrt(len(nulls))
    shown = f"a backend against itself differs by {mean:+.1%} (+-{reach:.1%}, {len(nulls)} pairs)"
    if abs(mean) <= reach:
        return Check("null", "passed", shown)
    return Check("null", "warning", f"NOT NULL: {shown}: the second of two measurements is not the first one's equal.")


def _client_bound(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.client_cpu > MAX_CLIENT_CPU:
            yield (
                f"CLIENT-BOUND at c={cell.level}: reading {cell.throughput:.0f} tok/s from {cell.backend} took "
                f"{cell.client_cpu:.0%} of one core; the backend may be faster than this."
            )


def find_flaw(cell: Cell) -> str | None:
    """Why a cell's window was not one steady load, if so: a pause somewhere, in a backend or in this very process."""
    name = f"NOT STEADY: {cell.backend} c={cell.level}"
    if cell.in_flight < MIN_IN_FLIGHT * cell.level:
        return f"{name} held only {cell.in_flight:.1f} in flight."
    if cell.level >= SPREAD_LEVEL and cell.evenness < MIN_EVENNESS:
        return f"{name} generated only {cell.evenness:.0%} of the usual in one fifth of its window: it paused."
    if cell.fill is not None and cell.fill < 1 - MAX_FILL_GAP:
        return f"{name} generated {1 - cell.fill:.0%} less than its request times allow: it paused."
    if cell.fill is not None and cell.fill > 1 + MAX_FILL_GAP:
        return f"{name} generated {cell.fill - 1:.0%} more than its request times allow: it made up for a pause before."
    if cell.loop_lag_max_s > MAX_PAUSE * cell.window_s:
        return f"{name}: this client itself was held up for {cell.loop_lag_max_s:.2f} s."
    return None


def _busy(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.machine_load > MAX_MACHINE_LOAD:
            yield (
                f"BUSY MACHINE at {cell.backend} c={cell.level}: {cell.machine_load:.1f} processes wanted each core of "
                "this client's machine; engines that share it were slowed by chance."
            )


def _lockstep(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.level >= SPREAD_LEVEL and (cell.phase_order or 0) > MAX_PHASE_ORDER:
            yield (
                f"LOCKSTEP R={cell.phase_order:.2f} at {cell.backend} c={cell.level}: starts are synchronised, "
                "TTFT measures burst admission."
            )


def _chunking(cells: Sequence[Cell]) -> Iterator[str]:
    by_backend: dict[str, list[float]] = {}
    for cell in cells:
        by_backend.setdefault(cell.backend, []).append(cell.tokens_per_chunk)
    means = {backend: sum(values) / len(values) for backend, values in by_backend.items()}
    if means and max(means.values()) / min(means.values()) > 1 + MAX_CHUNKING_GAP:
        shown = " vs ".join(f"{backend} {mean:.2f}" for backend, mean in means.items())
        yield f"CHUNKING DIFFERS: {shown} tokens/chunk; time between chunks is not comparable, TPOT is."
