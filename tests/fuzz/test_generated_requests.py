"""Whatever is sent, the gateway answers in a declared shape and never with a 5xx.

Some hundred requests by default, the same in every run; CROSSOVER_FUZZ_REQUESTS and CROSSOVER_FUZZ_SEED ask for more
and for others (`make fuzz`).
"""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from deploy.launch import LOGS, Launched
from deploy.stacks import GATEWAY
from tests.fuzz.exchange import Caller, Sent, check
from tests.fuzz.kinds import KINDS, Kind

REQUESTS = int(os.environ.get("CROSSOVER_FUZZ_REQUESTS", "500"))  # noqa: TID251 - a test's own settings
SEED = int(os.environ.get("CROSSOVER_FUZZ_SEED", "4"))  # noqa: TID251 - as above
# Of a request, on a machine that is busy with others.
PATIENCE_S = 0.3


def asking(kind: Kind, count: int, caller: Caller) -> Callable[[], None]:
    """Sends so many requests, and on the first bad answer looks for the simplest request that gets one."""

    @seed(SEED)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @given(kind.requests)
    def ask(sent: Sent) -> None:
        received = caller.send(sent)
        try:
            check(sent, received)
        except AssertionError as wrong:
            wrong.add_note(f"{sent}\n{received}\nseed {SEED}")
            raise

    return ask


@pytest.mark.timeout(60 + PATIENCE_S * REQUESTS)
@pytest.mark.parametrize("kind", KINDS)
def test_generated_requests_are_answered_in_a_declared_shape(kind: str, embedded_stack: Launched) -> None:
    log = embedded_stack.run_dir / LOGS / f"{GATEWAY}.log"
    before = len(log.read_bytes())
    count = max(1, round(REQUESTS * KINDS[kind].share))
    caller = Caller(embedded_stack.url)
    try:
        asking(KINDS[kind], count, caller)()
    finally:
        caller.close()
        print(f"seed {SEED}: {count_answers(caller)}")  # noqa: T201 - pytest shows it when the test fails, and with -rP
    assert caller.answered.total() >= count
    served = sum(number for (_, status), number in caller.answered.items() if status == 200)
    assert served >= KINDS[kind].answered * count
    assert find_traceback(log, before) == ""
    assert in_flight(embedded_stack) == 0


def count_answers(caller: Caller) -> str:
    statuses: Counter[int] = Counter()
    for (_, status), number in caller.answered.items():
        statuses[status] += number
    answers = ", ".join(f"{number} x {status}" for status, number in sorted(statuses.items()))
    return f"{caller.answered.total()} requests, {answers}"


def find_traceback(log: Path, since: int) -> str:
    """The first that the gateway has logged: no client gets the cause of a fault of ours."""
    text = log.read_bytes()[since:].decode(errors="replace")
    at = text.find("Traceback")
    return "" if at < 0 else text[max(0, at - 300) : at + 3000]


def in_flight(stack: Launched) -> int:
    (model,) = httpx.get(f"{stack.url}/admin/state").json()["models"]
    return sum(backend["in_flight"] for backend in model["backends"].values())
