"""The prediction of `curve`, against values worked out by hand."""

from dataclasses import replace

import pytest
from gateway.routing.policies.forecast import ANSWER, TTFT, Part, Shape, predict_s

from gateway.routing.policies import EngineModel, NodeModel

# A step takes 10 ms up to 100 at once; an answer of 100 tokens 1 s, so at most 100 answers a second.
FLAT = EngineModel(((1, 10.0), (100, 10.0)), 1e6, 100)
SLOW = EngineModel(((1, 20.0), (100, 20.0)), 1e6, 100)
SHAPE = Shape(0.0, 100.0)
NOTHING = Part(0.0, 0.0)


def node(interference: float = 1.0) -> NodeModel:
    return NodeModel(FLAT, SLOW, interference, prompt_tokens=80, answer_tokens=100)


@pytest.mark.parametrize(("low", "high", "seconds"), [(Part(20, 20), NOTHING, 1.0), (NOTHING, Part(20, 40), 2.0)])
def test_a_load_that_stands_still_takes_an_answers_time(low: Part, high: Part, seconds: float) -> None:
    assert predict_s(node(), SHAPE, low, high, ANSWER) == pytest.approx(seconds, rel=0.01)


def test_without_load_it_is_the_engine_that_would_get_it() -> None:
    assert predict_s(node(), SHAPE, NOTHING, NOTHING, ANSWER) == pytest.approx(1.0)


def test_engines_that_share_their_gpus_slow_each_other_down() -> None:
    both = predict_s(node(), SHAPE, Part(10, 30), Part(10, 30), ANSWER)
    assert both == pytest.approx(3.0, rel=0.01)
    assert predict_s(node(0.0), SHAPE, Part(10, 10), Part(10, 20), ANSWER) == pytest.approx(1.5, rel=0.02)


def test_an_overload_shows_the_queue_of_the_next_seconds_and_no_more() -> None:
    """20 a second too many: after 4 s 80 more than the 100 that run, so 1.8 s for an answer at the end."""
    predicted = predict_s(node(), SHAPE, Part(120, 100), NOTHING, ANSWER)
    assert 1.2 < predicted < 1 + 20 * 4.0 / 100


def test_first_tokens_take_their_own_time_while_what_runs_finishes_as_it_does() -> None:
    """20 a second where an answer takes 1 s: 20 in flight, at which the first token is half way up the table."""
    fast, slow = (replace(engine, ttft_ms=((1, 50.0), (39, 150.0))) for engine in (FLAT, SLOW))
    first = NodeModel(fast, slow, 1.0, prompt_tokens=80, answer_tokens=100)
    assert predict_s(first, SHAPE, Part(20, 20), NOTHING, TTFT) == pytest.approx(0.1, rel=0.02)
    longer = Shape(50_000.0, 100.0)  # 0.05 s of prefill more than the model's prompts
    assert predict_s(first, longer, Part(20, 21), NOTHING, TTFT) == pytest.approx(0.15, rel=0.05)
    both = predict_s(first, SHAPE, Part(10, 30), Part(10, 30), TTFT)  # steps, and first tokens, of 3 and 1.5 times
    assert both == pytest.approx(0.126 * (3 + 1.5) / 2, rel=0.02)
