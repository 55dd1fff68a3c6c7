"""What a completion's prompt may be: text, ids, lists of either; and its echo."""

from dataclasses import replace

from tests.parity.case import Case, Refused, Same, drawn_greedily, not_in_vllm, text, turn

FRANCE = turn("What is the capital of France?")
PARIS = Same("The capital of France is Paris.", "stop")
# "<|im_start|>", then bytes as the model's vocabulary numbers them: ids are taken as they are.
IDS = [1, 300, 301, 302, 303, 304]

CASES: tuple[Case, ...] = (
    text("prompt", FRANCE, PARIS),
    text("prompt without a turn", "The capital of France is"),
    text("prompt that ends in half a word", "Once upon a ti"),
    text("prompt that ends in an emoji", "A smile: 😀"),
    text("prompt ids", IDS),
    text("prompt ids, special ones", [1, 2, 1]),
    text("prompt ids, the first and the last", [0, 1023]),
    text("list of prompts", [FRANCE, turn("hi"), "The capital of"]),
    text("list of prompt ids", [IDS, [1, 400, 401], [5]]),
    text("list of prompts in many tongues", ["こん", "😀", "При"], max_tokens=8),
    text("max_tokens 1", FRANCE, Same("The", "length"), max_tokens=1),
    text("max_tokens null", turn("Count to 20."), Same(None, "stop"), max_tokens=None),
    text("prompt of nearly the context", [7] * 1016, max_tokens=8),
    text("prompt and answer fill the context", [7] * 1000, max_tokens=24, ignore_eos=True),
    text("echo", FRANCE, echo=True),
    text("echo of Unicode", "Γειά 😀 e\u0301", echo=True, max_tokens=6),
    text("echo of ids", IDS, echo=True),
    text("echo of prompts", ["The capital of", turn("hi")], echo=True, max_tokens=6),
    drawn_greedily(text("echo and n", "The capital of", echo=True, n=2, max_tokens=6)),
    text("echo and a stop string in the prompt", "a b c d e", echo=True, stop="c", max_tokens=6),
    text("echo alone", "The capital of France", Refused("max_tokens"), echo=True, max_tokens=0),
    not_in_vllm("suffix is only supported", text("suffix that is empty", FRANCE, PARIS, suffix="")),
    text(
        "labels of a completion",
        FRANCE,
        PARIS,
        user="ada",
        metadata={"a": "b"},
        service_tier="flex",
        store=True,
        priority=0,
    ),
    text("special tokens not added", FRANCE, PARIS, add_special_tokens=False),
    replace(
        text("continuous usage", FRANCE, PARIS),
        stream_options={"continuous_usage_stats": True},
    ),
    replace(
        drawn_greedily(text("continuous usage of several choices", [FRANCE, turn("hi")], n=2, max_tokens=6)),
        stream_options={"continuous_usage_stats": True},
    ),
)
