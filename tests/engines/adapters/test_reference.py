"""The reference engine as our Triton model drives it: its own thread delivers. Real engine, real threads, no Triton."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from engines.adapters.reference import ReferenceAdapter
from engines.reference.engine import TokenOutput
from engines.reference.sampling import SamplingParams
from engines.reference.trtllm_contract import TokenRequest
from tests.engines.conftest import TINY


class Recorder:
    """A Receiver that waits for the end; one with a broken pipe raises instead of taking tokens."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.token_ids: list[int] = []
        self.is_over = threading.Event()
        self._is_broken = is_broken

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        if self._is_broken:
            self.is_over.set()
            raise MemoryError("no shared memory left")
        self.token_ids += [output.token_id for output in outputs]
        if outputs[-1].finish_reason:
            self.is_over.set()

    def failed(self, message: str) -> None:
        pytest.fail(message)


@pytest.fixture
def adapter(make_checkpoint: Callable[..., Path]) -> Iterator[ReferenceAdapter]:
    with closing(ReferenceAdapter({"model_dir": str(make_checkpoint(**TINY))})) as adapter:
        yield adapter


def request(max_tokens: int) -> TokenRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return TokenRequest(
        (5, 6, 7), params, stop_words=(), is_streaming=True, includes_prompt=False, returns_logprobs=False
    )


def test_answers_go_on_after_a_receiver_that_raises_which_is_logged(
    adapter: ReferenceAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = Recorder(is_broken=True), Recorder()
    with caplog.at_level(logging.ERROR, logger="engines.adapters"):
        adapter.start(request(1), broken)
        assert broken.is_over.wait(10)
        adapter.start(request(4), whole)
        assert whole.is_over.wait(10)
    assert len(whole.token_ids) == 4
    assert "no shared memory left" in caplog.text
