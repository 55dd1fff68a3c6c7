"""What a published sweep says against itself."""

from collections.abc import Iterator

from loadtest.published.rows import Row, Sweep
from loadtest.stats import P90_SAMPLES, P99_SAMPLES

MIN_FILL = 0.97


def find_faults(sweep: Sweep) -> Iterator[str]:
    for row in sweep.rows:
        name = f"{sweep.tag} c={row.concurrency}"
        if row.out_tokens_mean != row.requested_tokens:
            yield (
                f"UNEQUAL WORK: {name} returned {row.out_tokens_mean} of {row.requested_tokens} tokens on average: it "
                "stopped early, or chunks were counted as tokens."
            )
        if (fill := row.throughput_tok_s / row.steady_throughput) < MIN_FILL:
            yield _pause(name, row, fill)
        if row.requests < P99_SAMPLES:
            missing = "p99" if row.requests >= P90_SAMPLES else "p90 and p99"
            yield f"{missing} n/a: {name} has {row.requests} requests, p99 needs {P99_SAMPLES}."


def _pause(name: str, row: Row, fill: float) -> str:
    cause = "a cold first request" if row.concurrency == 1 else "a pause, or start and drain inside the window"
    return (
        f"NOT STEADY: {name}: {row.unexplained_s:.2f} s of {row.wall_s:.1f} s are not its own request times "
        f"(fill {fill:.2f}): {cause}; its throughput is too low by as much."
    )
