"""Which cells identify an engine's model, besides those of the first shape that decide the crossing. Pure.

In: the length of answers, the longest prompt, the most in flight. Out: loads. docs/results/identification.md has what
each is for, and how well the traces' times are known with them.
"""

from collections.abc import Sequence

from loadtest.decide.closed_load import Load

LONGEST = 4096  # tokens of a prompt
EAGER = 640  # tokens
SHORT = 8  # tokens of short answers: with 16, fits with the right numbers predicted 32 in flight up to 24 % wrong
LONG = 3  # times the usual tokens of an answer: contexts get long, prompts rare, and the fit can separate their times
MOST_IN_FLIGHT = 48


def list_loads(tokens: int, longest: int, most: int) -> Sequence[Load]:
    """Lists closed loops, for first shapes with answers of `tokens`. No prompt is longer than `longest`, and no more
    than `most` are in flight.
    """
    half = max(longest // 2, 2)
    eager = max(_find_eager(longest), 1)
    loads = (
        (half, LONG * tokens, 24),
        (half, tokens, MOST_IN_FLIGHT),
        (half, min(tokens, SHORT), 16),
        (eager, tokens, 8),
        (eager, tokens, MOST_IN_FLIGHT),
    )
    return tuple(dict.fromkeys(Load(prompt, min(answer, half), min(level, most)) for prompt, answer, level in loads))


def list_prompts(longest: int) -> Sequence[int]:
    """Lists prompts, in tokens, whose first tokens are measured on an idle engine, from the shortest one on."""
    lengths = (longest // 64, longest // 4, _find_eager(longest), longest)
    return sorted({max(tokens, 1) for tokens in lengths})


def _find_eager(longest: int) -> int:
    """Returns a prompt's tokens: just too many for a CUDA graph (512), if the longest allows it, and so few that their
    step takes no longer than an eager one's floor. Nothing else shows that floor as traffic does, with one prompt
    beside others.
    """
    return min(EAGER, longest * 5 // 8)
