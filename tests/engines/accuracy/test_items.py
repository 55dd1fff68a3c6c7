"""Right answers, the choice of items, and the lines of a task file."""

from pathlib import Path

import pytest

from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Choice, FreeText, Item, select
from engines.accuracy.task_file import read_tasks


@pytest.mark.parametrize(
    ("answer", "text", "is_right"),
    [
        (FreeText(("Paris",)), "  Paris\n", True),
        (FreeText(("Paris",)), "paris", False),
        (FreeText(("Paris", "paris ")), "paris", True),
        (FreeText(("Paris",)), "Paris.", False),
        (FreeText(("42",), extract=r"#### (-?\d+)"), "6 * 7\n#### 42", True),
        (FreeText(("42",), extract=r"-?\d+"), "It is 42, not 43", True),
        (FreeText(("42",), extract=r"#### (\d+)"), "It is 42", False),
        (FreeText(("",), extract=r"a(b)?"), "ac", False),
    ],
)
def test_an_answer_is_right_if_what_is_read_equals_one_text(answer: FreeText, text: str, is_right: bool) -> None:
    assert answer.accepts(answer.read(text)) is is_right


@pytest.mark.parametrize(
    ("choice", "logprobs", "picked"),
    [
        (Choice(("a", "b", "c"), 0), [-2.0, -1.0, -3.0], 1),
        (Choice(("a", "b"), 0), [-1.0, -1.0], 0),
        (Choice(("a", "a long one"), 0), [-2.0, -5.0], 0),
        (Choice(("a", "a long one"), 0, by_byte=True), [-2.0, -5.0], 1),
        (Choice(("ab", "é"), 0, by_byte=True), [-2.0, -2.1], 0),
    ],
)
def test_the_likeliest_choice_is_picked(choice: Choice, logprobs: list[float], picked: int) -> None:
    assert choice.pick(logprobs) == picked


def make_items(*tasks: str) -> list[Item]:
    return [Item(str(number), task, "?", FreeText(("!",))) for number, task in enumerate(tasks)]


def test_tasks_are_chosen_by_name_and_cut_to_their_first_items() -> None:
    items = make_items("x", "y", "x", "z", "x")
    assert [item.name for item in select(items, [], ["y"], 2)] == ["0", "2", "3"]
    assert [item.name for item in select(items, ["x", "y"], [], None)] == ["0", "1", "2", "4"]


@pytest.mark.parametrize(
    ("only", "skip", "words"), [(["w"], [], "no task w; there are x, y"), ([], ["x", "y"], "no item")]
)
def test_a_task_that_is_not_there_is_an_error(only: list[str], skip: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        select(make_items("x", "y"), only, skip, None)


def test_every_form_of_a_line_becomes_an_item(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        '{"task": "t", "id": "one", "prompt": "2 + 2 =", "choices": [" 4", " 5"], "answer": 0, "by_byte": true}\n'
        "\n"
        '{"prompt": "2 + 2 =", "answer": "4", "stop": ["\\n"], "max_tokens": 5}\n'
        '{"messages": [{"role": "user", "content": "Hi"}], "answer": ["Hello", "Hi"], "extract": "(Hello|Hi)"}\n'
    )
    assert read_tasks(path) == [
        Item("one", "t", "2 + 2 =", Choice((" 4", " 5"), 0, by_byte=True)),
        Item("line 3", "items", "2 + 2 =", FreeText(("4",), 5, ("\n",))),
        Item("line 4", "items", ({"role": "user", "content": "Hi"},), FreeText(("Hello", "Hi"), extract="(Hello|Hi)")),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "line 1: Invalid JSON"),
        ('{"prompt": "a"}', "line 1: answer: Field required"),
        ('{"answer": "a"}', "either a prompt or messages"),
        ('{"prompt": "a", "messages": [{}], "answer": "b"}', "either a prompt or messages"),
        ('{"prompt": "", "answer": "b"}', "line 1: prompt: String should have at least 1 character"),
        ('{"prompt": "a", "answer": 4}', "quote a number"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": 2}', "0 to 1"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": "b"}', "the place of the right one"),
        ('{"prompt": "a", "choices": ["b"], "answer": 0}', "line 1: choices"),
        ('{"messages": [{}], "choices": ["b", "c"], "answer": 0}', "messages cannot be continued"),
        ('{"prompt": "a", "choices": ["b", "c"], "answer": 0, "stop": ["x"]}', "stop: of no use"),
        ('{"prompt": "a", "answer": "b", "by_byte": true}', "by_byte: only choices"),
        ('{"prompt": "a", "answer": "b", "extract": "("}', "line 1: extract: Value error, is no regular expression"),
        ('{"prompt": "a", "answer": "b", "extra": 1}', "line 1: extra: Extra inputs"),
        ('{"prompt": "a", "answer": "b", "max_tokens": 0}', "line 1: max_tokens"),
        ("", "holds no item"),
    ],
)
def test_a_line_that_is_no_item_is_named_with_its_field(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(line)
    with pytest.raises(CannotMeasure, match=words):
        read_tasks(path)
