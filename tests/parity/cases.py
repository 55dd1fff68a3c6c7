"""The whole table: every case, by a name of its own."""

from tests.parity.case import Case
from tests.parity.table import details, guides, messages, prompts, refusals, relayed, sampling, stops, tools

CASES: tuple[Case, ...] = (
    *messages.CASES,
    *prompts.CASES,
    *stops.CASES,
    *sampling.CASES,
    *tools.CASES,
    *guides.CASES,
    *details.CASES,
    *relayed.CASES,
    *refusals.CASES,
)
BY_NAME = {case.name: case for case in CASES}
