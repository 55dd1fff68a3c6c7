"""Where an answer ends: stop strings wherever tokens are cut, stop ids, end tokens, limits."""

from tests.parity.case import Case, Same, chat, drawn_greedily, text, turn

FRANCE = "What is the capital of France?"
COUNT = "Count to 20."


def stopped(name: str, stop: object, expected: str | None = None, **fields: object) -> Case:
    return chat(f"stop: {name}", FRANCE, Same(expected, "stop"), stop=stop, **fields)


CASES: tuple[Case, ...] = (
    stopped("one word", "France", "The capital of "),
    stopped("across two tokens", "l of F", "The capita"),
    stopped("across many tokens", "e capital of Fr", "Th"),
    stopped("at the start", "The", ""),
    stopped("the whole answer", "The capital of France is Paris.", ""),
    stopped("a list, the second first", ["Paris", "France"], "The capital of "),
    stopped("one within the other", ["apital of", "of"]),
    stopped("shown", "France", "The capital of France", include_stop_str_in_output=True),
    stopped("not before min_tokens", "capital", min_tokens=4),
    stopped("the end token's spelling", "<|im_end|>", "The capital of France is Paris."),
    chat("stop: Unicode", "Say hello in Japanese.", Same("こん", "stop"), stop="にち"),
    drawn_greedily(chat("stop: in every choice", FRANCE, Same("The capital of ", "stop"), stop="France", n=3)),
    text("stop: in every prompt", [turn(FRANCE), turn("Is Paris the capital of France?")], stop="Paris"),
    text("stop: past the end token", turn("hi"), stop="zzzz", ignore_eos=True),
    text(
        "stop: shown in a completion", turn(FRANCE), Same("The capital of F"), stop="F", include_stop_str_in_output=True
    ),
    text("stop_token_ids of a completion", turn(FRANCE), Same("The capital of", "stop"), stop_token_ids=[963]),
    text("min_tokens of a completion", turn("hi"), min_tokens=12),
    text(
        "special tokens shown in a completion",
        turn("hi"),
        ignore_eos=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=True,
    ),
    chat("stop_token_ids: the first token", FRANCE, Same("", "stop"), stop_token_ids=[414]),
    chat("stop_token_ids: several", COUNT, Same("1, ", "stop"), stop_token_ids=[22, 21, 20]),
    chat("stop_token_ids: shown", COUNT, Same("1, 2", "stop"), stop_token_ids=[20], include_stop_str_in_output=True),
    chat("stop_token_ids and ignore_eos", COUNT, Same("1, ", "stop"), stop_token_ids=[20], ignore_eos=True),
    chat("ignore_eos", "hi", Same(None, "length"), ignore_eos=True),
    chat("ignore_eos, special tokens shown", "hi", ignore_eos=True, skip_special_tokens=False),
    chat("special tokens shown", "hi", skip_special_tokens=False, spaces_between_special_tokens=False),
    chat("special tokens and the end shown", "hi", skip_special_tokens=False, include_stop_str_in_output=True),
    chat("the end shown", "hi", include_stop_str_in_output=True),
    chat("min_tokens beyond the end", "hi", min_tokens=16),
    chat("min_tokens is max_tokens", "hi", Same(None, "length"), min_tokens=24),
    chat("min_tokens, max_tokens and ignore_eos", "hi", min_tokens=24, ignore_eos=True),
    chat("max_completion_tokens", "Count to 20.", Same(None, "length"), max_tokens=None, max_completion_tokens=5),
    chat("both limits", "Count to 20.", Same(None, "length"), max_tokens=5, max_completion_tokens=5),
    chat("within a character", "Say hello in Korean.", max_tokens=1),
    chat("within an emoji", "Show me a smile.", max_tokens=1),
)
