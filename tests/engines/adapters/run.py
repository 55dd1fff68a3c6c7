"""python tests/engines/adapters/run.py ENGINE: an adapter in an environment of its own, without Triton.

In, as JSON on stdin: `parameters`, and `cases` by name, each with `prompt` and the fields of `params`. Out, as a last
line: by name the ids, their log probabilities, the finish reason, the error; the limits, and the tensors not followed.
"""

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from engines.adapters import ADAPTERS, TokenEngine  # the path comes first
from engines.reference.engine import TokenOutput
from engines.reference.guide import Guide
from engines.reference.sampling import SamplingParams
from engines.reference.trtllm_contract import TokenRequest

PATIENCE_S = 60.0  # for one answer of a few tokens, on a machine that does other things


class Recorder:
    """A Receiver that waits for the end."""

    def __init__(self) -> None:
        self.outputs: list[TokenOutput] = []
        self.error: str | None = None
        self._is_over = threading.Event()

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self.outputs += outputs
        if outputs[-1].finish_reason:
            self._is_over.set()

    def failed(self, message: str) -> None:
        self.error = message
        self._is_over.set()

    def wait(self) -> dict[str, object]:
        assert self._is_over.wait(PATIENCE_S), "no end of an answer"
        return {
            "ids": [output.token_id for output in self.outputs],
            "logprobs": [output.logprob for output in self.outputs],
            "positions": [output.position for output in self.outputs],
            "finish_reason": self.outputs[-1].finish_reason if self.outputs else None,
            "error": self.error,
        }


def request(prompt: Sequence[int], params: Mapping[str, Any]) -> TokenRequest:
    """`params` are SamplingParams' fields, as JSON writes them."""
    fields: dict[str, Any] = {"temperature": 0.0}  # as SamplingParams types them
    fields |= {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}
    lora_task_id = fields.pop("lora_task_id", None)
    if "guide" in fields:
        fields["guide"] = Guide(*fields["guide"])
    sampling = SamplingParams(**fields)
    return TokenRequest(
        tuple(prompt),
        sampling,
        stop_words=(),
        is_streaming=True,
        includes_prompt=False,
        returns_logprobs=False,
        lora_task_id=lora_task_id,
    )


def run_all(engine: TokenEngine, cases: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """All at once, as a server would, and then those of LoRA adapters.

    In one batch with an adapter's requests, vLLM 0.32 for CPUs gives other ids to those without one.
    """
    adapted = {name: case for name, case in cases.items() if "lora_task_id" in case["params"]}
    plain = {name: case for name, case in cases.items() if name not in adapted}
    return {**run_together(engine, plain), **run_together(engine, adapted)}


def run_together(engine: TokenEngine, cases: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    recorders = {name: Recorder() for name in cases}
    for name, case in cases.items():
        engine.start(request(case["prompt"], case["params"]), recorders[name])
    return {name: recorder.wait() for name, recorder in recorders.items()}


def main() -> None:
    asked = json.load(sys.stdin)
    engine = ADAPTERS[sys.argv[1]](asked["parameters"])
    try:
        answers = run_all(engine, asked["cases"])
        limits = [engine.limits.vocab_size, engine.limits.context_length]
        unfollowed = sorted(engine.limits.unfollowed)
    finally:
        engine.close()
    sys.stdout.write("\n" + json.dumps({"answers": answers, "limits": limits, "unfollowed": unfollowed}) + "\n")


if __name__ == "__main__":  # vLLM starts its engine in a child that imports this file again
    main()
