"""How tokens are picked: temperature and its like, seeds, penalties, bias, and several choices of one prompt."""

from tests.parity.case import (
    Case,
    OnlyVLLM,
    Same,
    Sampled,
    chat,
    not_in_vllm,
    text,
    turn,
    with_fields,
)

# On text of its world the model is too sure to be swayed. These ids are none of that.
NOISE = [1, 400, 401]
HELLO = Same("Hello! How can I help you?", "stop")
SEEDED = Sampled(is_seeded=True)
# Exactly so many tokens, so that counts and reasons are the same whatever is drawn.
EXACTLY = {"ignore_eos": True}


def drawn(name: str, expected: Sampled | OnlyVLLM = SEEDED, **fields: object) -> Case:
    return with_fields(text(name, NOISE, expected), {"temperature": 1.0, "seed": 7, **EXACTLY, **fields})


def drawn_chat(name: str, expected: Sampled | OnlyVLLM = SEEDED, **fields: object) -> Case:
    asked = "Repeat: é ß 日本語 한글"
    return with_fields(chat(name, asked, expected), {"temperature": 2.0, "seed": 7, **EXACTLY, **fields})


def swayed(name: str, **fields: object) -> Case:
    """Greedy, where what is penalised or favoured changes the answer."""
    return with_fields(text(name, NOISE), {"ignore_eos": True, **fields})


CASES: tuple[Case, ...] = (
    drawn("unseeded", Sampled(), seed=None),
    drawn("temperature left out", Sampled(), temperature=None, seed=None),
    drawn("seed"),
    drawn("the greatest seed", seed=2**63 - 1),
    drawn_chat("unseeded chat", Sampled(), seed=None),
    drawn_chat("seed of a chat"),
    drawn("temperature near 0", temperature=0.01),
    swayed("temperature below what is greedy", temperature=1e-6),
    swayed("greedy with a seed", seed=42),
    swayed("top_k 1", temperature=1.0, top_k=1, seed=1),
    swayed("top_p near 0", temperature=1.0, top_p=1e-6, seed=1),
    drawn("top_p", top_p=0.5),
    drawn_chat("top_p of a chat", top_p=0.6),
    drawn("top_k", top_k=3),
    drawn("top_k off by -1", top_k=-1),
    drawn_chat("top_k of a chat", top_k=4),
    drawn("top_p and top_k", top_p=0.9, top_k=20),
    swayed("repetition_penalty", repetition_penalty=1.3),
    swayed("presence_penalty", presence_penalty=1.5),
    swayed("frequency_penalty", frequency_penalty=1.2),
    swayed("all penalties", repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
    chat("penalties of a chat", "Count to 20.", repetition_penalty=1.4, frequency_penalty=2.0, presence_penalty=1.0),
    chat("logit_bias against a token", "What is the capital of France?", logit_bias={"963": -100, "624": -100}),
    chat("logit_bias for a token", "hi", logit_bias={"414": 100}, max_tokens=6),
    chat("logit_bias for the end token", "hi", Same("", "stop"), logit_bias={"2": 100}),
    swayed("logit_bias, a little", logit_bias={"312": 6.5, "16": -0.5}),
    chat("min_p", "hi", OnlyVLLM("min_p", "min_p"), min_p=0.1),
    drawn("min_p and a seed", OnlyVLLM("min_p", "min_p"), min_p=0.05, temperature=2.0),
    chat("priority", "hi", HELLO, priority=1),
    chat("priority 0", "hi", HELLO, priority=0),
    chat("cache_salt", "hi", OnlyVLLM("cache_salt", "cache_salt"), cache_salt="s" * 43),
    text("cache_salt of a completion", turn("hi"), OnlyVLLM("cache_salt", "cache_salt"), cache_salt="s"),
    chat("max_tokens, more than the prompt leaves", "hi", HELLO, max_tokens=1020),
    text("max_tokens of a completion, more than the prompt leaves", turn("hi"), HELLO, max_tokens=1020),
    not_in_vllm("max_model_len", chat("max_tokens, more than the context", "hi", HELLO, max_tokens=32_000)),
    not_in_vllm("n must be 1", chat("n", "hi", HELLO, n=3)),
    drawn("n with a seed", n=3),
    drawn_chat("n of a chat with a seed", n=2),
    drawn_chat("n without a seed", Sampled(), n=2, seed=None),
    not_in_vllm("n must be 1", text("n of a completion", turn("hi"), n=2)),
    not_in_vllm("n must be 1", text("n of several prompts", [turn("hi"), turn("12 + 30")], n=2)),
    drawn("n of several prompts with a seed", n=2, prompt=[NOISE, [7, 8, 9]]),
    not_in_vllm("n must be 1", text("best_of that is n", turn("hi"), n=2, best_of=2)),
)
