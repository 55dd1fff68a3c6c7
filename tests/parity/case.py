"""One request of the parity table, and the expected answer. Plain data; knows no server.

In the table: a name, a path, a body without `model` and `stream`, and an Expectation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from deploy.stacks import MODEL

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# Ten times what most answers of the model need, and little enough where it wanders.
MAX_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Same:
    """Both engines give one answer. `text`: every choice's; `finish`: every choice's finish_reason.

    What two engines do alike may still be wrong alike: these anchor what matters most, vLLM's own server the rest.
    """

    text: str | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """Both engines answer alike but for what chance decides. `is_seeded`: each engine repeats itself."""

    is_seeded: bool = False


@dataclass(frozen=True, slots=True)
class OnlyVLLM:
    """Triton lacks what `field` asks for, and `need` is what the gateway calls it."""

    field: str
    need: str


@dataclass(frozen=True, slots=True)
class Refused:
    """By the gateway, whichever engine it is for; `param` names the field."""

    param: str
    code: str = "invalid_value"
    status: int = 400


@dataclass(frozen=True, slots=True)
class Relayed:
    """vLLM's own server answers, whatever that is; Triton speaks no such API. `field` asks for it."""

    field: str


Expectation: TypeAlias = Same | Sampled | OnlyVLLM | Refused | Relayed
SAME = Same()


@dataclass(frozen=True, slots=True)
class Case:
    """`stream_options`: beside include_usage, where the request is streamed.

    `vllm_refuses`: words of the error with which vLLM's own server refuses what the gateway answers; differences.py has
    the reason.
    """

    name: str
    path: str
    body: Mapping[str, object]
    expected: Expectation = SAME
    stream_options: Mapping[str, object] | None = None
    vllm_refuses: str | None = None

    @property
    def is_chat(self) -> bool:
        return self.path == CHAT

    def request(self, *, stream: bool) -> dict[str, object]:
        """The body that is sent."""
        whole = {"model": MODEL, **self.body}
        if not stream:
            return whole
        return whole | {"stream": True, "stream_options": {"include_usage": True, **(self.stream_options or {})}}


def chat(name: str, asked: str | list[object], expected: Expectation = SAME, **fields: object) -> Case:
    """A greedy chat; `asked` by the user, or all messages."""
    messages = [user(asked)] if isinstance(asked, str) else asked
    return Case(name, CHAT, {"messages": messages, **_GREEDY, **fields}, expected)


def text(name: str, prompt: object, expected: Expectation = SAME, **fields: object) -> Case:
    """A greedy completion."""
    return Case(name, TEXT, {"prompt": prompt, **_GREEDY, **fields}, expected)


def with_fields(case: Case, fields: Mapping[str, object]) -> Case:
    return replace(case, body={**case.body, **fields})


def drawn_greedily(case: Case) -> Case:
    """The same answer, asked for in a way in which vLLM gives several choices; of greedy ones it refuses to."""
    return with_fields(case, {"temperature": 1.0, "top_k": 1, "seed": 1})


def not_in_vllm(refusal: str, case: Case) -> Case:
    """A case that vLLM's own server refuses, with this in its message."""
    return replace(case, vllm_refuses=refusal)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


def assistant(content: object, **fields: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **fields}


def turn(asked: str) -> str:
    """A prompt that the model's template would make of it."""
    return f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


_GREEDY: Mapping[str, object] = {"temperature": 0, "max_tokens": MAX_TOKENS}
