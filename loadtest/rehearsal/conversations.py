"""Which requests of a trace belong together, by whom they wait for and by the blocks that their prompts share. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from loadtest.rehearsal.traces import TraceRequest

TOKEN_S = 0.02  # of an answer in a source that does not say how long it took
# In Mooncake's trace of conversations 7,373 different blocks follow the one that holds the system prompt, and at most
# 11 any other.
MAX_BRANCHES = 16


def link_turns(trace: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Lets a request wait for the last one before whose prompt and answer its own prompt goes on with.

    Only where no request waits for another so far. The blocks of a prompt identify it; that the answer fits in between
    is all that is known of it.
    """
    if any(request.after is not None for request in trace):
        return tuple(trace)
    deepest, last, linked = _find_deepest(trace), dict[int, int](), list[TraceRequest]()
    for index, (request, block) in enumerate(zip(trace, deepest, strict=True)):
        before = last.get(block) if block is not None else None
        if before is not None and _goes_on(request, trace[before]):
            wait_s = request.at - trace[before].at - TOKEN_S * trace[before].tokens
            request = replace(request, after=before, wait_s=max(wait_s, 0.0))  # noqa: PLW2901 - or as it was
        linked.append(request)
        last |= dict.fromkeys(request.prefix, index)
    return tuple(linked)


def _goes_on(request: TraceRequest, before: TraceRequest) -> bool:
    full = before.prompt_tokens // before.block
    return (
        full > 0
        and request.prefix[:full] == before.prefix[:full]
        and request.prompt_tokens >= before.prompt_tokens + before.tokens
    )


def find_conversations(trace: Sequence[TraceRequest]) -> list[int]:
    """Returns a conversation's number for each request: that of the request it waits for, or else of the first one with
    the deepest block that it shares. What all share, as a system prompt, makes no conversation.
    """
    found, owners = list[int](), dict[int, int]()
    for index, (request, block) in enumerate(zip(trace, _find_deepest(trace), strict=True)):
        first = owners[block] if block is not None else index
        before = first if request.after is None else request.after
        found.append(index if before == index else found[before])
        for each in request.prefix:
            owners.setdefault(each, index)
    return found


def _find_deepest(trace: Sequence[TraceRequest]) -> list[int | None]:
    """Finds the last leading block of each request that an earlier one has too; None if too many go on from it."""
    followers: dict[int, set[int]] = defaultdict(set)
    for request in trace:
        for block, follower in zip(request.prefix, request.prefix[1:], strict=False):
            followers[block].add(follower)
    seen, deepest = set[int](), list[int | None]()
    for request in trace:
        shared = request.prefix[: count_seen(request.prefix, seen)]
        deepest.append(shared[-1] if shared and len(followers[shared[-1]]) <= MAX_BRANCHES else None)
        seen.update(request.prefix)
    return deepest


def count_seen(prefix: Sequence[int], seen: set[int]) -> int:
    """Returns how many leading blocks are among those seen."""
    return next((index for index, block in enumerate(prefix) if block not in seen), len(prefix))


def select(trace: Sequence[TraceRequest], kept: Sequence[int]) -> tuple[TraceRequest, ...]:
    """Returns the requests with the indices `kept`, in that order.

    One that waited for a request left out waits for the one before that, for as long as both together.
    """
    places = {index: place for place, index in enumerate(kept)}

    def relink(request: TraceRequest) -> TraceRequest:
        after, wait_s = request.after, request.wait_s
        while after is not None and after not in places:
            skipped = trace[after]
            after, wait_s = skipped.after, wait_s + skipped.wait_s
        place = None if after is None else places[after]
        return replace(request, after=place, wait_s=0.0 if place is None else wait_s)

    return tuple(relink(trace[index]) for index in kept)


def drop_unshared(trace: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Numbers blocks in the order of their appearance, without those at the end of a prompt that no other one has."""
    uses = Counter(block for request in trace for block in request.prefix)
    numbers: dict[int, int] = {}

    def number(request: TraceRequest) -> TraceRequest:
        shared = max((index for index, block in enumerate(request.prefix, 1) if uses[block] > 1), default=0)
        prefix = tuple(numbers.setdefault(block, len(numbers)) for block in request.prefix[:shared])
        return replace(request, prefix=prefix, block=request.block if prefix else 0)

    return tuple(map(number, trace))
