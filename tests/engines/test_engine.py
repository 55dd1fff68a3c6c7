"""Continuous batching: who runs when, why an answer ends, and that company changes nothing."""

import json
import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engines.reference.checkpoint import Checkpoint, load_checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.guide import Grammars, Guide
from engines.reference.launch import WEIGHTS
from engines.reference.model import Model
from engines.reference.plan import Chunk
from engines.reference.sampling import SamplingParams

Answers = dict[str, list[TokenOutput]]
END = 5
KINDS: list[dict[str, Any]] = [  # any fields
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 10},
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.4},
]


def params_of(kind: int = 0, **changes: Any) -> SamplingParams:  # any field
    return SamplingParams(**{"max_tokens": 12, "seed": 3 + kind} | KINDS[kind % len(KINDS)] | changes)


def prompt_of(seed: int, length: int = 0, vocab_size: int = 128) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length or rng.randint(1, 40))]


def run(engine: Engine, steps: int = 10_000, only: Collection[str] | None = None) -> Answers:
    """Steps until nothing is left."""
    answers: Answers = {}
    while steps and (engine.stats.running or engine.stats.waiting):
        for output in engine.step(only):
            answers.setdefault(output.request_id, []).append(output)
        steps -= 1
    return answers


def ids(outputs: Sequence[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs]


def alone(checkpoint: Checkpoint, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    engine = Engine(checkpoint, max_batch=1)
    engine.add("alone", prompt, params)
    return ids(run(engine)["alone"])


@pytest.fixture
def trained() -> Engine:
    return Engine(load_checkpoint(WEIGHTS), grammars=Grammars(WEIGHTS, 1024))


# The model's own words


def test_greedy_answer_is_the_models_likeliest_continuation(tiny: Checkpoint) -> None:
    prompt, engine = prompt_of(1), Engine(tiny)
    engine.add("a", prompt, params_of())
    outputs = run(engine)["a"]
    for output in outputs:
        fresh = Engine(tiny)
        logits = Model(tiny).forward([Chunk(0, 0, prompt)], fresh._cache)
        assert output.token_id == logits[0].argmax()
        prompt.append(output.token_id)
    assert [output.position for output in outputs] == list(range(1, 13))


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_answer_is_the_same_alone_and_in_a_batch_of_64(checkpoint: Checkpoint, kind: int) -> None:
    engine = Engine(checkpoint, max_batch=64)
    prompts = [prompt_of(seed, vocab_size=1024) for seed in range(64)]
    for index, prompt in enumerate(prompts):
        engine.add(str(index), prompt, params_of(kind if index % 16 == 0 else index, max_tokens=16))
    answers = run(engine)
    for index in range(0, 64, 16):
        assert ids(answers[str(index)]) == alone(checkpoint, prompts[index], params_of(kind, max_tokens=16))


@pytest.mark.parametrize("prefill_tokens", [1, 7, 256])
def test_prompt_scores_come_once_with_the_first_token_in_any_pieces(tiny: Checkpoint, prefill_tokens: int) -> None:
    prompt, engine = prompt_of(5, 30), Engine(tiny, prefill_tokens=prefill_tokens)
    engine.add("company", prompt_of(6, 20), params_of(prompt_logprobs=0))
    engine.add("a", prompt, params_of(prompt_logprobs=3))
    engine.add("plain", prompt_of(7, 20), params_of())
    answers = run(engine)
    first, *others = answers["a"]
    assert first.prompt_scores is not None
    assert first.prompt_scores[0] is None
    assert [score.token_id for score in first.prompt_scores if score] == prompt[1:]
    for position in range(1, len(prompt)):
        logits = Model(tiny).forward([Chunk(0, 0, prompt[:position])], Engine(tiny)._cache)[0].astype(float)
        score = first.prompt_scores[position]
        assert score is not None
        assert score.logprob == pytest.approx(logits[prompt[position]] - np.log(np.exp(logits).sum()), abs=1e-3)
        assert [token_id for token_id, _ in score.top] == np.argsort(-logits)[:3].tolist()
    assert all(output.prompt_scores is None for output in (*others, *answers["plain"]))
    assert ids(answers["a"]) == alone(tiny, prompt, params_of())
    assert ids(answers["plain"]) == alone(tiny, prompt_of(7, 20), params_of())


def test_a_guided_answer_matches_its_guide_and_its_scores_are_of_what_the_guide_left(trained: Engine) -> None:
    members = {"properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}
    guide = Guide("json_schema", json.dumps({"type": "object", **members}))
    tokenizer = Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    prompt = tokenizer.encode("Hello").ids
    trained.add("free", prompt, params_of(max_tokens=40))
    trained.add("guided", prompt, params_of(max_tokens=40, guide=guide, end_ids=(2,), logprobs=1))
    answers = run(trained)
    *answer, end = answers["guided"]
    assert json.loads(tokenizer.decode(ids(answer)))["a"] in {1, 22}
    assert (end.token_id, end.finish_reason, end.logprob) == (2, "stop", 0)
    assert ids(answers["free"]) != ids(answers["guided"])


# Who runs when


def test_decoding_goes_on_while_long_prompts_enter_in_pieces(tiny: Checkpoint) -> None:
    engine = Engine(tiny, prefill_tokens=10)
    engine.add("a", prompt_of(1, 8), params_of())
    engine.step()
    engine.add("b", prompt_of(2, 25), params_of())
    engine.add("c", prompt_of(3, 14), params_of())
    taken, order = [], []
    for _ in range(4):
        before = engine.stats.prompt_tokens
        order.append([output.request_id for output in engine.step()])
        taken.append(engine.stats.prompt_tokens - before)
    assert taken == [10, 10, 10, 9]
    assert order == [["a"], ["a"], ["a", "b"], ["a", "b", "c"]]


def test_requests_beyond_max_batch_wait_in_order_of_arrival(tiny: Checkpoint) -> None:
    engine = Engine(tiny, max_batch=2)
    for name in "abcde":
        engine.add(name, prompt_of(1), params_of(max_tokens=2))
    firsts = []
    while engine.stats.running or engine.stats.waiting:
        firsts += [output.request_id for output in engine.step() if output.position == 1]
        assert engine.stats.running <= 2
    assert firsts == list("abcde")


def test_only_names_those_that_advance(tiny: Checkpoint) -> None:
    engine = Engine(tiny)
    prompts = {name: prompt_of(seed) for seed, name in enumerate("abcdef")}
    for name, prompt in prompts.items():
        engine.add(name, prompt, params_of())
    assert [output.request_id for output in engine.step({"a", "c"})] == ["a", "c"], (
        "prompts of others stay where they are"
    )
    assert [output.request_id for output in engine.step({"a", "d", "nobody"})] == ["a", "d"]
    assert engine.step(set()) == []
    assert engine.stats.steps == 2
    seen = {"a": 2, "c": 1, "d": 1}
    rest = run(engine)
    for name, prompt in prompts.items():
        assert ids(rest[name]) == alone(tiny, prompt, params_of())[seen.get(name, 0) :]


# Why an answer ends


def end_of(checkpoint: Checkpoint, prompt: Sequence[int], **changes: Any) -> list[TokenOutput]:  # any field
    engine = Engine(checkpoint)
    engine.add("a", prompt, params_of(**changes))
    outputs = run(engine)["a"]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert engine.stats.running == 0
    return outputs


@pytest.mark.parametrize("field", ["end_ids", "stop_ids"])
def test_end_and_stop_tokens_end_an_answer_and_are_its_last_token(tiny: Checkpoint, field: str) -> None:
    free = alone(tiny, prompt_of(5), params_of())
    outputs = end_of(tiny, prompt_of(5), **{field: (free[4],)})
    assert ids(outputs) == free[: free.index(free[4]) + 1]
    assert outputs[-1].finish_reason == "stop"


def test_ignored_end_tokens_are_sampled_and_do_not_end_but_stop_ids_do(tiny: Checkpoint) -> None:
    free = alone(tiny, prompt_of(5), params_of())
    ignored = end_of(tiny, prompt_of(5), end_ids=(free[2], free[5]), ignore_eos=True)
    assert ids(ignored) == free
    stopped = end_of(tiny, prompt_of(5), end_ids=(free[2],), stop_ids=(free[5],), ignore_eos=True)
    assert ids(stopped) == free[: free.index(free[5]) + 1]


def test_min_tokens_are_free_of_end_and_stop_ids_and_the_next_may_be_one(tiny: Checkpoint) -> None:
    rest = tuple(range(3, 128))
    outputs = end_of(tiny, prompt_of(6), end_ids=rest[:60], stop_ids=rest[60:], min_tokens=9)
    assert all(token in {0, 1, 2} for token in ids(outputs)[:9])
    certain = end_of(tiny, prompt_of(6), end_ids=tuple(range(127)), min_tokens=3)
    assert [*ids(certain)[:3], certain[-1].finish_reason] == [127, 127, 127, "stop"]


@pytest.mark.parametrize("length", [1, 40, 62, 63])
def test_a_full_context_ends_an_answer_with_length(tiny: Checkpoint, length: int) -> None:
    outputs = end_of(tiny, prompt_of(7, length), max_tokens=1000)
    assert (len(outputs), outputs[-1].finish_reason) == (64 - length, "length")


# Leaving


@pytest.mark.parametrize("steps", [0, 1, 4], ids=["waiting", "in prefill", "in decode"])
def test_a_cancelled_request_frees_what_it_held_at_once(tiny: Checkpoint, steps: int) -> None:
    engine = Engine(tiny, max_batch=1, prefill_tokens=16)
    engine.add("leaver", prompt_of(2, 40), params_of())
    engine.add("next", prompt_of(3), params_of())
    for _ in range(steps):
        engine.step()
    for name in ("leaver", "leaver", "nobody"):
        engine.cancel(name)
    assert (engine.stats.running, engine.stats.waiting, engine.stats.kv_tokens_used) == (0, 1, 0)
    engine.add("leaver", prompt_of(4), params_of())  # the name is free as well
    with pytest.raises(ValueError, match="'next' is in use"):
        engine.add("next", [1], params_of())
    answers = run(engine)
    assert ids(answers["next"]) == alone(tiny, prompt_of(3), params_of())
    assert ids(answers["leaver"]) == alone(tiny, prompt_of(4), params_of())


# Refusals and counts


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([128], "vocabulary of 128"),
        ([1, -1], "vocabulary of 128"),
        ([1] * 64, "64 tokens; the context of 64"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused_holding_nothing(tiny: Checkpoint, prompt: list[int], message: str) -> None:
    engine = Engine(tiny)
    with pytest.raises(ValueError, match=message):
        engine.add("a", prompt, params_of())
    assert engine.stats.waiting == 0
    engine.add("a", [1], params_of())


def test_a_bias_or_a_guide_that_cannot_be_followed_is_refused(tiny: Checkpoint, trained: Engine) -> None:
    with pytest.raises(ValueError, match="logit_bias holds token ids outside the vocabulary of 128"):
        Engine(tiny).add("a", [1], params_of(logit_bias=((128, 1.0),)))
    with pytest.raises(ValueError, match="no tokenizer to follow a guide with"):
        Engine(tiny).add("a", [1], params_of(guide=Guide("json")))
    with pytest.raises(ValueError, match="Grammar error"):
        trained.add("a", [1], params_of(guide=Guide("regex", "(")))
    assert trained.stats.waiting == 0


def test_stats_count_tokens_steps_and_the_cache(tiny: Checkpoint) -> None:
    engine = Engine(tiny, max_batch=2)
    for name, length in (("a", 10), ("b", 1), ("c", 5)):
        engine.add(name, prompt_of(1, length), params_of(max_tokens=3))
    engine.step()
    stats = engine.stats
    assert (stats.running, stats.waiting, stats.capacity) == (2, 1, 2)
    assert (stats.kv_tokens_used, stats.kv_tokens_total) == (11, 128)
    assert (stats.prompt_tokens, stats.generated_tokens, stats.steps) == (11, 2, 1)
    run(engine)
    stats = engine.stats
    assert (stats.kv_tokens_used, stats.prompt_tokens, stats.generated_tokens, stats.steps) == (0, 16, 9, 6)


# Anything, in any order


@pytest.mark.parametrize("seed", range(6))
def test_random_arrivals_and_departures_change_no_answer_and_leak_no_slot(tiny: Checkpoint, seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(tiny, max_batch=rng.choice([1, 3, 8]), prefill_tokens=rng.choice([1, 7, 64]))
    asked: dict[str, tuple[list[int], SamplingParams]] = {}
    answers: Answers = {}
    gone: set[str] = set()
    for turn in range(150):
        if rng.random() < 0.3:
            prompt, params = prompt_of(turn), params_of(turn, max_tokens=rng.randint(1, 30), end_ids=(END, 17))
            engine.add(str(turn), prompt, params)
            asked[str(turn)] = prompt, params
        if asked and rng.random() < 0.1:
            gone.add(name := rng.choice(list(asked)))
            engine.cancel(name)
        only = {name for name in asked if rng.random() < 0.6} if rng.random() < 0.3 else None
        for output in engine.step(only):
            assert output.request_id not in gone
            assert only is None or output.request_id in only
            answers.setdefault(output.request_id, []).append(output)
        check_slots(engine)
    for name, outputs in run(engine).items():
        answers.setdefault(name, []).extend(outputs)
    assert (engine.stats.running, engine.stats.waiting, engine.stats.kv_tokens_used) == (0, 0, 0)
    assert not engine._requests
    for name, (prompt, params) in asked.items():
        whole, got = alone(tiny, prompt, params), ids(answers.get(name, []))
        assert got == whole[: len(got)]
        assert name in gone or len(got) == len(whole)


def check_slots(engine: Engine) -> None:
    running = engine._running
    assert [generation.slot for generation in running] == list(range(len(running)))
    assert len(running) + len(engine._waiting) == len(engine._requests)
    assert all(0 <= generation.computed < len(generation.token_ids) for generation in running)
    assert engine._prefilling.keys() <= {generation.request_id for generation in running}
