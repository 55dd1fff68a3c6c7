"""A model that thinks, through the official clients: what it thought comes out, and goes back in without loss."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deploy.cpu import cpu
from deploy.embedded import embedded
from deploy.launch import LOGS, Launched, launched
from deploy.ports import find_free
from tests.clients.conftest import Connect, marks
from tests.clients.question import CONVERSING, Place, Question
from tests.clients.thinking_weights import write_thinking_weights

CHILE, FRANCE = (f"What is the capital of {country}?" for country in ("Chile", "France"))
PROMPT = (
    f"<|im_start|>user\n{FRANCE}<|im_end|>\n"
    "<|im_start|>assistant\n<think>The capital of France</think> Paris.<|im_end|>\n"
    f"<|im_start|>user\n{CHILE}<|im_end|>\n<|im_start|>assistant\n<think>"
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking_weights(tmp_path_factory.mktemp("thinking") / "weights")


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=marks(is_usual=False))])
def stack(
    request: pytest.FixtureRequest, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp(request.param)
    pair = cpu(folder / LOGS, weights=weights) if request.param == "real" else embedded(weights=weights)
    with launched(pair, find_free(1)[0], folder, lambda *_: None) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("pin", ["triton", "vllm"])
@pytest.mark.parametrize("name", CONVERSING)
def test_thoughts_come_out_and_go_back(
    find_client: Callable[[str], Connect], stack: Launched, weights: Path, name: str, pin: str, *, stream: bool
) -> None:
    client = find_client(name)(Place(stack.url, pin))
    asked = Question([{"role": "user", "content": FRANCE}], stream, thinks=True, max_tokens=2048)
    answer = client.ask(asked)
    assert (answer.thoughts, answer.text, answer.finish_reasons) == (("The capital of France",), " Paris.", ("stop",))
    answer = client.ask(replace(asked, then=CHILE))
    assert (answer.thoughts, answer.text) == (("The capital of Chile",), " Santiago.")
    assert answer.finish_reasons == ("stop", "stop")
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    assert answer.prompt_tokens == len(tokenizer.encode(PROMPT, add_special_tokens=False))
    client.close()
