"""How sound a measurement has to be: one limit for each property that checks look at, with its reason. Pure.

docs/calibration.md has the same table; a test compares the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any


def _limit(default: float, reason: str) -> Any:  # Any: dataclasses.field's own type is the field's
    return field(default=default, metadata={"reason": reason})


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `status`: passed, note, warning (the threshold stands), or failed (there is none)."""

    name: str
    status: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a sound measurement. They are shares, unless a reason names another unit."""

    in_flight: float = _limit(0.98, "least mean in flight, of the level: with fewer it is another level")
    fill_gap: float = _limit(0.05, "most tokens missing, or too many, for the times that requests took: a pause")
    evenness: float = _limit(
        0.6, "least tokens in a fifth of the window, of the usual fifth, from 8 in flight on: a pause"
    )
    client_pause: float = _limit(0.05, "longest hold-up of the client itself, of the window")
    foreign: float = _limit(0.05, "most requests of others among those in flight: theirs would be measured with ours")
    unsteady: float = _limit(
        0.1,
        "most cells kept that paused, or whose client was late: a few are weighed less, many are the run",
    )
    client_cpu: float = _limit(0.7, "most of one core for reading: above it events wait for the client")
    client_lag: float = _limit(1.0, "most lateness (p99) of the client, in times per token; 10 ms always pass")
    lockstep: float = _limit(0.5, "most order R of starts within a request time: 0 spread, 1 all at once")
    bunched: float = _limit(0.1, "most cells in lockstep: TTFT would be that of bursts")
    chunking: float = _limit(0.02, "most difference in tokens per chunk between backends")
    machine_load: float = _limit(2.0, "most processes that want each core of the client's machine (load average)")
    cached: float = _limit(0.01, "most prompt tokens from a prefix cache: what was measured would be the cache")
    repeat_sd: float = _limit(0.03, "largest standard deviation of one throughput ratio")
    null_alpha: float = _limit(0.01, "chance at which an engine that equals itself is taken for another")
    roofline_most: float = _limit(
        1.0, "most of the memory bandwidth that decoding may seem to use: more is no decoding"
    )
    roofline_least: float = _limit(0.3, "least of it for one request alone: below, launches are what takes time")
    roofline_usual: float = _limit(0.4, "the same, below which it is doubtful")
    flat_tpot: float = _limit(
        1.05, "least TPOT at 32 in flight on a GPU, of one request's: below, its host is the limit"
    )
    gpu_clock: float = _limit(
        0.05, "most that a busy GPU's mean clock may lie below its usual one in a cell: it was hot, or out of power"
    )
    regret: float = _limit(
        0.05, "most that the mean answer may take longer with routing live than with one engine alone, beyond chance"
    )
    open_loop: float = _limit(
        0.25, "most difference in an answer's time between arrivals by chance and the node model, near the crossing"
    )
    misfit: float = _limit(
        0.15, "most by which the other cells predict a shape's answer times wrong: above, the node model is doubtful"
    )
    unusable: float = _limit(0.4, "the same, above which the node model is not applied")
    plateau: float = _limit(0.03, "within which both backends stop at one rate: the gateway's, not theirs")

    @classmethod
    def names(cls) -> list[str]:
        return [one.name for one in fields(cls)]

    @classmethod
    def reasons(cls) -> dict[str, tuple[float, str]]:
        """Returns default and reason by name."""
        return {one.name: (one.default, one.metadata["reason"]) for one in fields(cls)}  # type: ignore[misc]  # every field has a default

    def changed(self, settings: Iterable[str]) -> "Limits":
        """Returns limits changed by settings like "name=value". Raises ValueError that names what is wrong."""
        return replace(self, **dict(map(_read, settings)))


def _read(setting: str) -> tuple[str, float]:
    name, equals, text = setting.partition("=")
    name = name.strip()
    if not equals or name not in Limits.names():
        raise ValueError(f"{setting}: no such limit; NAME=VALUE with one of {', '.join(Limits.names())}")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}={text}: no number") from None
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={text}: a limit is 0 or more")
    return name, value


USUAL = Limits()
# A quick run has windows of two requests, and its client often shares the machine with the engines. So most of what a
# full run is refused for is only a warning here.
LOOSE = replace(USUAL, fill_gap=0.1, unsteady=1.0, client_cpu=0.9, client_lag=5.0, bunched=0.3)
