"""Asks the trained model 400 questions, greedily, and prints the share of each skill it answers exactly.

    python -m engines.reference.training.evaluate engines/reference/weights

Needs torch and transformers. The questions come from a seed training never used; the world is small, so many recur, but
most sums, words to reverse and tool results are new. The weights in the repository: 400 of 400.
"""

import sys
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from engines.reference.training.tokenizer import END, Renderer
from engines.reference.training.train import token_id
from engines.reference.training.world import Conversation, conversations

UNSEEN_SEED = 7


def skill_of(conversation: Conversation) -> str:
    last = next(m for m in reversed(conversation.messages) if m["role"] == "user")
    answer = conversation.messages[-1]
    if answer.get("tool_calls"):
        return "tool call"
    if conversation.messages[-2]["role"] == "tool":
        return "tool result"
    text = str(last["content"]).lower()
    for word in (
        "json",
        "capital",
        "weather",
        "+",
        "plus",
        "add",
        "backwards",
        "reverse",
        "colo",
        "count",
        "hello",
        "repeat",
        "say",
    ):
        if word in text:
            return word
    return "other"


def answer(model: LlamaForCausalLM, ids: list[int], end: int, limit: int) -> list[int]:
    device = next(model.parameters()).device
    prompt = torch.tensor([ids], device=device)
    made = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, do_sample=False, eos_token_id=end
    )
    return [int(token) for token in made[0, len(ids) :]]


def main() -> None:
    directory = Path(sys.argv[1])
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    render = Renderer(Path(__file__).parents[1] / "weights" / "chat_template.jinja")
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    torch.nn.Module.to(model, "cuda" if torch.cuda.is_available() else "cpu")
    opening, end = "<|im_start|>assistant\n", token_id(tokenizer, END)
    right, asked = Counter[str](), Counter[str]()
    for conversation in conversations(UNSEEN_SEED, 400):
        text = render(conversation)
        cut = text.rindex(opening) + len(opening)
        expected = tokenizer.encode(text[cut:].removesuffix("\n"), add_special_tokens=False).ids
        ids = tokenizer.encode(text[:cut], add_special_tokens=False).ids
        got = answer(model, ids, end, len(expected) + 8)
        skill = skill_of(conversation)
        asked[skill] += 1
        right[skill] += got == expected
        if got != expected:
            print("WRONG", skill, repr(tokenizer.decode(got)), "for", repr(text[cut:]))  # noqa: T201 - the report
    for skill, count in sorted(asked.items()):
        print(f"{skill:12} {right[skill]}/{count}")  # noqa: T201 - the report


if __name__ == "__main__":
    main()
