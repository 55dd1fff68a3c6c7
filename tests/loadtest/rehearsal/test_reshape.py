"""Traces with other rates and lengths: whole conversations stay together, in the order of their turns."""

import random
from collections import Counter, defaultdict

import pytest

from loadtest.rehearsal.conversations import drop_unshared, find_conversations, link_turns, select
from loadtest.rehearsal.find_trace import read_recorded
from loadtest.rehearsal.reshape import Reshape, find_peak, find_window_s, reshape
from loadtest.rehearsal.trace_figures import count_rates, find_trace_figures
from loadtest.rehearsal.traces import TraceRequest


def make_conversations(count: int, turns: int = 4) -> tuple[TraceRequest, ...]:
    """Turns 20 s apart with prompts that grow by a block; all share the first block, and answers have their number."""
    draw, requests, blocks = random.Random(1), list[TraceRequest](), 1
    for number in range(count):
        at = draw.uniform(0, 1000)
        ids = (0, *range(blocks, blocks + turns))
        blocks += turns
        requests += [
            TraceRequest(at + 20 * turn, 512 * (turn + 2) + 1, number + 1, prefix=ids[: turn + 2], block=512)
            for turn in range(turns)
        ]
    return tuple(sorted(requests, key=lambda request: request.at))


def list_turns(trace: tuple[TraceRequest, ...]) -> dict[int, list[TraceRequest]]:
    turns = defaultdict(list)
    for request in trace:
        turns[request.tokens].append(request)
    return turns


TRACE = make_conversations(100)


def test_blocks_show_which_requests_are_turns_of_one_conversation() -> None:
    linked = link_turns(TRACE)
    assert sum(each.after is None for each in linked) == 100
    assert all(each.after is None or linked[each.after].tokens == each.tokens for each in linked)
    waits = [each.wait_s + 0.02 * each.tokens for each in linked if each.after is not None]
    assert waits == pytest.approx([20.0] * 300)
    for trace in (TRACE, linked):
        numbers = find_conversations(trace)
        assert len({(number, each.tokens) for number, each in zip(numbers, trace, strict=True)}) == 100


def test_thinning_leaves_out_whole_conversations_and_keeps_the_order_of_turns() -> None:
    thin, dropped = reshape(TRACE, Reshape(peak=0.2), seed=3)
    turns = list_turns(thin)
    assert dropped == 0
    assert 10 < len(turns) < 60
    assert {len(each) for each in turns.values()} == {4}
    for index, each in enumerate(thin):
        if each.after is not None:
            assert each.after < index
            assert thin[each.after].tokens == each.tokens
            assert thin[each.after].prompt_tokens == each.prompt_tokens - 512
    assert find_peak([each.at for each in thin], find_window_s(link_turns(TRACE))) <= 0.2
    assert reshape(TRACE, Reshape(peak=0.2), seed=3)[0] == thin
    assert reshape(TRACE, Reshape(peak=0.2), seed=4)[0] != thin


def test_time_is_compressed_with_its_waits() -> None:
    fast, _ = reshape(TRACE, Reshape(seconds=50), seed=1)
    slow = link_turns(TRACE)
    factor = 50 / (slow[-1].at - slow[0].at)
    assert fast[-1].at == pytest.approx(50)
    assert [each.wait_s for each in fast] == pytest.approx([each.wait_s * factor for each in slow])
    peak = find_trace_figures(TRACE).peak_per_s
    faster, _ = reshape(TRACE, Reshape(peak=3 * peak), seed=1)
    assert len(faster) == len(TRACE)
    assert find_trace_figures(faster).peak_per_s == pytest.approx(3 * peak, rel=0.01)


def test_too_few_requests_for_a_peak_are_reported() -> None:
    with pytest.raises(ValueError, match=r"a peak of 500 requests/s: all requests in this time make "):
        reshape(TRACE, Reshape(peak=500, seconds=100), seed=1)
    with pytest.raises(ValueError, match="no prompt has at most 10 tokens"):
        reshape(TRACE, Reshape(max_prompt=10), seed=1)


def test_long_prompts_are_dropped_and_who_waited_for_one_waits_for_the_one_before() -> None:
    kept, dropped = reshape(TRACE, Reshape(max_prompt=4 * 512), seed=1)
    assert (len(kept), dropped) == (200, 200)
    linked = link_turns(TRACE)
    gap = select(linked, [index for index, each in enumerate(linked) if each.prompt_tokens != 3 * 512 + 1])
    later = [each for each in gap if each.prompt_tokens == 4 * 512 + 1]
    assert all(each.after is not None and gap[each.after].prompt_tokens == 2 * 512 + 1 for each in later)
    assert [each.wait_s for each in later] == pytest.approx([2 * (20 - 0.02 * each.tokens) for each in later])


def test_prompts_are_scaled_with_their_blocks_and_share_as_much_as_before() -> None:
    small, _ = reshape(TRACE, Reshape(scale_prompt=0.25), seed=1)
    assert {each.block for each in small} == {128}
    assert find_trace_figures(small).repeated == pytest.approx(find_trace_figures(TRACE).repeated, rel=0.01)


def test_blocks_that_one_prompt_alone_has_are_left_out() -> None:
    assert [each.prefix for each in drop_unshared(TRACE[:1])] == [()]
    shared = drop_unshared(TRACE)
    assert find_trace_figures(shared).repeated == find_trace_figures(TRACE).repeated
    assert Counter(len(each.prefix) for each in shared) == {2: 100, 3: 100, 4: 200}  # of the last turn all but its own


def test_a_published_trace_has_keys() -> None:
    trace = read_recorded("azure-chat peak=36 seconds=50 scale_prompt=0.25 max_prompt=2000")
    figures = find_trace_figures(tuple(trace))
    assert figures.seconds == pytest.approx(50, abs=1)
    assert figures.peak_per_s == pytest.approx(36, rel=0.05)
    assert figures.prompt_tokens.mean == pytest.approx(1155 / 4, rel=0.1)
    rates = count_rates(trace, 10)
    assert sum(rates) / 10 == pytest.approx(figures.requests_per_s)
    with pytest.raises(ValueError, match=r"height: .* \(keys: peak, seconds, max_prompt, scale_prompt\)"):
        read_recorded("azure-chat height=3")
