"""What a pair serves: traces at rates that keep it busy. Pure.

In: a pair's name, and seconds. Out: options of `crossover rehearse`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.physics import Mix
from engines.physics.forecast import find_answer_s
from engines.reference.pairs import load_pairs

ANSWER_TOKENS, PROMPT_TOKENS = 213, 290  # as in `chat` in the mean
PROMPT_WORDS = 66  # about as many tokens, with the template's
# 6,000: the engines' context has room for the longest prompt with the longest answer.
MOONCAKE = "mooncake-chat max_prompt=6000"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A published trace with its keys, and the requests a second in its busiest twentieth."""

    source: str
    peak: float


# 0.4 to 0.9 of what the better engine completes by its forecast, where its cache has what prompts share.
RECORDED: Mapping[str, Mapping[str, Recorded]] = {
    "tp-dp": {
        "chat": Recorded("azure-chat scale_prompt=0.25", 63),
        "conv36": Recorded("azure-chat", 36),
        "mooncake": Recorded(MOONCAKE, 20),
    },
    "spec-plain": {
        "chat": Recorded("azure-chat scale_prompt=0.25", 40),
        "conv36": Recorded("azure-chat", 18),
        "mooncake": Recorded(MOONCAKE, 12),
    },
}
BURSTS = "bursts"
PAIRS = tuple(RECORDED)


def name_traces(pair: str, seconds: float) -> Mapping[str, str]:
    """Returns what --trace is for each trace by name."""
    traces = {name: f"{each.source} peak={each.peak:g} seconds={seconds:g}" for name, each in RECORDED[pair].items()}
    mix = Mix.of([PROMPT_TOKENS], ANSWER_TOKENS)
    answer_s = min(find_answer_s(engine, mix, 0.0, 1.0) for engine in load_pairs()[pair].engines.values())
    return {**traces, BURSTS: f"{BURSTS} length={seconds / answer_s:.3g}"}


def list_options(traces: Sequence[str], rounds: int) -> tuple[str, ...]:
    served = (option for trace in traces for option in ("--trace", trace))
    lengths = ("--tokens", str(ANSWER_TOKENS), "--prompt-words", str(PROMPT_WORDS))
    return (*served, "--policy", "curve", "--repeats", str(rounds), *lengths)
