from itertools import product

from loadtest.client.prompts import Lead, PromptId, write_prompt


def test_no_prompt_is_used_twice_in_a_run_or_by_the_next_run() -> None:
    ids = [PromptId(*numbers) for numbers in product(range(20), range(20), range(10))]
    prompts = {write_prompt(seed, each, words=12) for seed in (1, 2) for each in ids}
    assert len(prompts) == 2 * len(ids)
    assert write_prompt(1, ids[7], words=12) in prompts  # the same id, the same prompt


def test_prompts_differ_from_their_first_characters_on_and_have_the_same_number_of_words() -> None:
    prompts = [write_prompt(1, PromptId(0, stream, 0), words=30) for stream in range(1000)]
    assert len({prompt[:19] for prompt in prompts}) == 1000
    assert {len(prompt.split()) for prompt in prompts} == {4 + 5 + 30}


def test_prompts_share_the_words_of_their_leading_blocks_and_no_more() -> None:
    one, other = (write_prompt(1, PromptId(0, 0, n), 120, Lead((4, 5, 6 + n), 30.5)).split() for n in range(2))
    assert one[:61] == other[:61]  # two blocks of 30.5 words
    assert one[61:92] != other[61:92]
    assert one[92:96] != other[92:96]  # the digits
    plain = write_prompt(1, PromptId(0, 0, 0), 120).split()
    assert len(one) == len(other) == len(plain)
    assert one[92:101] == plain[:9]


def test_another_run_shares_no_block_with_this_one() -> None:
    prompts = [write_prompt(seed, PromptId(0, 0, 0), 60, Lead((4,), 40.0)).split()[:40] for seed in range(50)]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 50


def test_a_prompt_ends_with_a_word_of_its_own_where_its_blocks_are_longer_than_it() -> None:
    prompts = [write_prompt(1, PromptId(0, 0, number), 50, Lead((1, 2, 3), 30.0)).split() for number in range(20)]
    assert {len(prompt) for prompt in prompts} == {50 + 4 + 5}
    assert len({tuple(prompt[:49]) for prompt in prompts}) == 1
    assert len({tuple(prompt[49:]) for prompt in prompts}) == 20
