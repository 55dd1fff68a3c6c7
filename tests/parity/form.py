"""Whether a stream's chunks are as OpenAI sends them: what comes first, what comes last, what comes once.

In: events. Out: what is wrong, in words. Knows no text; that the text is right is not asked here.
"""

from collections.abc import Iterator, Sequence

from tests.parity.answers import COMMON, Json


def find_breaches(events: Sequence[Json], *, is_chat: bool) -> Iterator[str]:
    """Of a stream that was asked for usage."""
    for name in COMMON:
        if len({event.get(name) for event in events}) > 1:
            yield f"{name!r} is not the same in every chunk"
    yield from _check_usage(events)
    of_choices = [event["choices"] for event in events if event["choices"]]
    if any(len(choices) > 1 for choices in of_choices):
        yield "a chunk holds more than one choice"
    for index in {choice["index"] for choices in of_choices for choice in choices}:
        chunks = [choices[0] for choices in of_choices if choices[0]["index"] == index]
        yield from _check_end(index, chunks)
        if is_chat:
            yield from _check_deltas(index, [chunk["delta"] for chunk in chunks])


def _check_usage(events: Sequence[Json]) -> Iterator[str]:
    *before, last = events
    if last["choices"] or not last.get("usage"):
        yield "the last chunk is not the one of usage"
    if any(not event["choices"] for event in before):
        yield "a chunk before the last has no choice"
    if any("usage" not in event for event in before):
        yield "a chunk has no field 'usage', though it was asked for"


def _check_end(index: int, chunks: Sequence[Json]) -> Iterator[str]:
    *before, last = chunks
    if last["finish_reason"] is None or any(chunk["finish_reason"] is not None for chunk in before):
        yield f"choice {index}: finish_reason is not on its last chunk alone"
    if last.get("delta") or last.get("text"):
        yield f"choice {index}: its last chunk holds more than finish_reason"


def _check_deltas(index: int, deltas: Sequence[Json]) -> Iterator[str]:
    first, *others = deltas
    if first.get("role") != "assistant" or any("role" in delta for delta in others):
        yield f"choice {index}: the role is not in its first chunk alone"
    begun: set[int] = set()
    for call in [call for delta in deltas for call in delta.get("tool_calls", ())]:
        names = set(call) | {f"function.{name}" for name in call["function"]}
        expected = {"index", "function", "function.arguments"}
        if call["index"] not in begun:
            begun.add(call["index"])
            expected |= {"id", "type", "function.name"}
        if names != expected:
            yield f"choice {index}: a piece of call {call['index']} holds {sorted(names)}"
