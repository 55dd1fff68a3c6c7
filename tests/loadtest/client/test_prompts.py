from itertools import product

from loadtest.client.prompts import PromptId, write_prompt


def test_no_prompt_is_used_twice_in_a_run_or_by_the_next_run() -> None:
    ids = [PromptId(*numbers) for numbers in product(range(20), range(20), range(10))]
    prompts = {write_prompt(seed, each, words=12) for seed in (1, 2) for each in ids}
    assert len(prompts) == 2 * len(ids)
    assert write_prompt(1, ids[7], words=12) in prompts  # the same id, the same prompt


def test_prompts_differ_from_their_first_characters_on_and_have_the_same_number_of_words() -> None:
    prompts = [write_prompt(1, PromptId(0, stream, 0), words=30) for stream in range(1000)]
    assert len({prompt[:19] for prompt in prompts}) == 1000
    assert {len(prompt.split()) for prompt in prompts} == {4 + 5 + 30}
