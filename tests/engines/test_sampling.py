"""The vectorised sampler against the rules written out for one row."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.reference.drawing import quantile, uniforms
from engines.reference.guide import Grammars, Guide
from engines.reference.sampling import SampleState, SamplingParams, guided, sample, scores

VOCABULARY = 200
WEIGHTS = Path(__file__).parents[2] / "engines/reference/weights"
Floats = NDArray[np.float32]


def random_logits(rows: int, seed: int = 0) -> Floats:
    return 3 * np.random.default_rng(seed).standard_normal((rows, VOCABULARY), np.float32)


def state_of(prompt: tuple[int, ...] = (1, 2), answer: tuple[int, ...] = (), **params: Any) -> SampleState:  # any field
    state = SampleState(SamplingParams(**{"max_tokens": 100, "seed": 5} | params), prompt, VOCABULARY)
    for token in answer:
        state.record(token)
    return state


def kept_tokens(row: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """Token to probability after temperature, min_p, top_k over what is left, then top_p over what top_k left."""
    scaled = row.astype(float) / temperature
    order = np.argsort(-scaled)
    order = order[np.exp(scaled[order] - scaled.max()) >= min_p][: top_k if top_k > 0 else None]
    chances = np.exp(scaled[order])
    chances /= chances.sum()
    before = np.cumsum(chances) - chances
    kept = order[before < top_p]
    return dict(zip(kept.tolist(), (chances[before < top_p] / chances[before < top_p].sum()).tolist(), strict=True))


def test_temperature_zero_takes_the_likeliest_whatever_the_filters() -> None:
    logits = random_logits(4)
    states = [state_of(temperature=0), state_of(temperature=0, top_k=5), state_of(temperature=1e-6), state_of(top_k=1)]
    assert sample(logits, states).tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 7},
        {"top_p": 0.6},
        {"top_k": 12, "top_p": 0.8},
        {"top_p": 1e-9},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"min_p": 0.2, "top_p": 0.9},
        {"min_p": 0.02, "top_k": 9, "top_p": 0.9},
    ],
)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_filtered_distribution(filters: dict[str, float], temperature: float) -> None:
    draws = 4000
    row = random_logits(1)
    params: dict[str, Any] = {"temperature": temperature, **filters}  # any field
    states = [state_of(**params, seed=seed) for seed in range(draws)]
    counts = Counter(sample(np.repeat(row, draws, axis=0), states).tolist())
    top_k, top_p, min_p = int(filters.get("top_k", 0)), filters.get("top_p", 1.0), filters.get("min_p", 0.0)
    expected = kept_tokens(row[0], temperature, top_k, top_p, min_p)
    assert counts.keys() <= expected.keys()
    for token, chance in expected.items():
        deviation = (draws * chance * (1 - chance)) ** 0.5
        assert abs(counts[token] - draws * chance) < 5 * deviation + 1


def penalised(row: Floats, state: SampleState, prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[float]:
    """vLLM's apply_penalties, a token at a time."""
    params, counts, values = state.params, Counter(answer), []
    for token, raw in enumerate(row.tolist()):
        value = raw
        if token in prompt or token in answer:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * counts[token]
        value -= params.presence_penalty * (counts[token] > 0)
        values.append(value)
    return values


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 1.5},
        {"frequency_penalty": -0.8},
        {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.9},
    ],
)
def test_penalties_match_the_direct_formula(penalties: dict[str, float]) -> None:
    prompt, answer = (3, 4, 4, 150), (4, 9, 9, 9, 60)
    state = state_of(prompt, answer, **penalties)
    row = random_logits(1)[0]
    expected = penalised(row, state, prompt, answer)
    state.constrain(row)
    np.testing.assert_allclose(row, expected, atol=1e-5)


def test_a_bias_is_added_before_penalties_and_cannot_free_what_min_tokens_holds_back() -> None:
    row = np.full((1, VOCABULARY), -50, np.float32)
    row[0, [6, 7, 8]] = 4, -1, 2
    bias = ((7, 4.5), (8, 100.0), (3, 40.0))
    params: dict[str, Any] = {"temperature": 0, "end_ids": (8,), "logit_bias": bias}  # any fields
    assert sample(row, [state_of(**params)])[0] == 8
    held = {"min_tokens": 1}
    assert sample(row, [state_of(**params | held)])[0] == 6
    # The bias lifts token 7 from -1 to 3.5; divided after that, and not multiplied before, it loses to token 6 no more.
    penalised = {"repetition_penalty": 1.4, "end_ids": ()}
    state = state_of((6, 7), **params | penalised)
    state.constrain(row[0])
    assert row[0, [6, 7, 8, 3]].tolist() == pytest.approx([4 / 1.4, 3.5 / 1.4, 102, -10])


def test_min_tokens_yields_where_a_grammar_allows_its_end_alone() -> None:
    grammars = Grammars(WEIGHTS, 1024)
    params = SamplingParams(max_tokens=9, min_tokens=5, temperature=0, end_ids=(2,))
    logits = np.zeros((1, 1024), np.float32)
    done = SampleState(params, (1,), 1024, grammars.walk(Guide("regex", "")))
    assert sample(guided(logits, [done]), [done])[0] == 2
    open_ = SampleState(params, (1,), 1024, grammars.walk(Guide("regex", "a*")))
    assert sample(guided(logits, [open_]), [open_])[0] != 2


def test_a_guide_masks_its_own_row_alone_and_follows_what_is_recorded() -> None:
    grammars = Grammars(WEIGHTS, 1024)
    params = SamplingParams(max_tokens=9, temperature=0)
    states = [SampleState(params, (1,), 1024, walk) for walk in (None, grammars.walk(Guide("regex", "[0-9]x")))]
    logits = np.random.default_rng(3).standard_normal((2, 1024), np.float32)
    masked = guided(logits, states)
    assert (masked[0] == logits[0]).all()
    assert np.isfinite(masked[1]).sum() == 10
    states[1].record(int(masked[1].argmax()))
    assert np.isfinite(guided(logits, states)[1]).sum() == 1


MIXED: list[dict[str, Any]] = [  # any fields
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 1.2, "top_p": 0.9},
    {"top_k": 20},
    {"temperature": 0, "repetition_penalty": 1.4},
    {"top_p": 0.5, "top_k": 50, "frequency_penalty": 0.6},
    {"min_tokens": 3, "end_ids": (0, 1)},
    {"min_p": 0.1, "temperature": 1.5},
    {"logit_bias": ((9, 7.0), (12, -100.0)), "logprobs": 3},
]


def test_a_row_is_sampled_the_same_alone_and_in_company() -> None:
    rows = 70
    logits = random_logits(rows)
    states = [state_of(answer=(7,) * (row % 5), **MIXED[row % len(MIXED)] | {"seed": row}) for row in range(rows)]
    together = sample(logits, states)
    assert together.tolist() == [sample(logits[row : row + 1], [states[row]])[0] for row in range(rows)]
    assert (logits == random_logits(rows)).all(), "the raw logits must stay as they were"


def test_scores_are_of_the_raw_distribution_and_only_where_wanted() -> None:
    logits = random_logits(3)
    states = [
        state_of(logprobs=2, temperature=0.3, top_k=2, frequency_penalty=2.0, logit_bias=((5, 9.0),)),
        state_of(),
        state_of(logprobs=0, temperature=0),
    ]
    chances = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(axis=1, keepdims=True)
    tokens = sample(logits, states)
    scored = scores(logits, tokens, states)
    assert scored[1] is None
    for row, count in ((0, 2), (2, 0)):
        score = scored[row]
        assert score is not None
        assert (score.token_id, len(score.top)) == (tokens[row], count)
        assert score.logprob == pytest.approx(np.log(chances[row, tokens[row]]), abs=1e-5)


@pytest.mark.parametrize("axis", ["seeds", "positions"])
def test_uniforms_are_uniform_and_uncorrelated(axis: str) -> None:
    count = 50_000
    run, still = list(range(count)), [3] * count
    drawn = uniforms(run, still) if axis == "seeds" else uniforms(still, run)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    histogram = np.histogram(drawn, bins=50, range=(0, 1))[0]
    assert ((histogram - count / 50) ** 2 / (count / 50)).sum() < 49 + 5 * (2 * 49) ** 0.5
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / count**0.5


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
def test_quantile_finds_the_first_index_past_a_fraction_and_never_an_empty_one(size: int) -> None:
    rng = np.random.default_rng(size)
    weights = (rng.random((200, size)) * (rng.random((200, size)) < 0.3)).astype(np.float32)
    weights[:, rng.integers(size)] += 0.01
    fractions = rng.random(200)
    fractions[:4] = 0, 1, 1 - 2.0**-53, 2.0**-60
    found = quantile(weights, fractions)
    assert (weights[np.arange(200), found] > 0).all()
    running = weights.cumsum(axis=1, dtype=np.float64)
    direct = np.array([
        np.searchsorted(row, f * row[-1], side="right") for row, f in zip(running, fractions, strict=True)
    ])
    assert (found[2:] != direct[2:].clip(max=size - 1)).mean() < 0.02  # rounding at a border may fall either way
    assert found[0] == (weights[0] > 0).argmax()
    assert found[1] == np.flatnonzero(weights[1])[-1]


NAN = float("nan")
OUT_OF_RANGE: list[tuple[str, Any]] = [  # any field
    *(("max_tokens", 0), ("min_tokens", -1), ("min_tokens", 101), ("temperature", -0.1), ("temperature", NAN)),
    *(("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1), ("logprobs", -2)),
    *(("prompt_logprobs", -2), ("repetition_penalty", 0), ("presence_penalty", 2.1), ("frequency_penalty", NAN)),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_values_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        SamplingParams(**{"max_tokens": 100, name: value})
