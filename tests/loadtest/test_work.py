from itertools import product

from loadtest.work import Place, write_prompt


def test_no_prompt_is_used_twice_in_a_run_or_by_the_next_run() -> None:
    places = [Place(*numbers) for numbers in product(range(20), range(20), range(10))]
    prompts = {write_prompt(seed, place, words=12) for seed in (1, 2) for place in places}
    assert len(prompts) == 2 * len(places)


def test_prompts_differ_from_their_first_characters_on() -> None:
    beginnings = {write_prompt(1, Place(0, stream, 0), words=12)[:19] for stream in range(1000)}
    assert len(beginnings) == 1000


def test_a_prompt_depends_on_its_place_alone() -> None:
    assert write_prompt(5, Place(1, 2, 3), words=12) == write_prompt(5, Place(1, 2, 3), words=12)


def test_prompts_have_the_same_number_of_words() -> None:
    assert {len(write_prompt(1, Place(0, stream, 0), words=30).split()) for stream in range(200)} == {4 + 5 + 30}
