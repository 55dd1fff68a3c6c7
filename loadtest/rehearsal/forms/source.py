"""What a form's reader returns, and what it completes the file by. Imports no form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loadtest.rehearsal.conversations import select
from loadtest.rehearsal.traces import MAX_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class Completion:
    """What a file without times and token counts lacks. `rate`: conversations that begin a second. `wait_s`: mean pause
    of a user between an answer and the next turn.
    """

    rate: float
    wait_s: float
    seed: int
    count_tokens: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Source:
    """`dropped`: how many rows or turns became no request, by the reason."""

    requests: Sequence[TraceRequest]
    dropped: Mapping[str, int]


@contextmanager
def on_line(number: int) -> Iterator[None]:
    """Names the line in whatever is wrong with it. Raises ValueError."""
    try:
        yield
    except KeyError as exc:
        raise ValueError(f"line {number}: has no {exc.args[0]}") from exc
    except (ValueError, TypeError) as exc:
        raise ValueError(f"line {number}: {exc}") from exc


def read_count(value: object, name: str) -> int:
    """Reads a number of tokens. Raises ValueError."""
    text = value if isinstance(value, str) else repr(value)
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_TOKENS):
        raise ValueError(f"{name} must be a whole number from 0 to {MAX_TOKENS}: {text[:40]!r}")
    return int(text)


def sort(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Returns the requests in order of arrival, from 0 s on. Raises ValueError if there is none."""
    if not requests:
        raise ValueError("holds no request")
    return select(requests, sorted(range(len(requests)), key=lambda index: requests[index].at))
