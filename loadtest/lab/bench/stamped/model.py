"""A Triton Python model with TensorRT-LLM's tensors that sends each request one stamped id per step, paced.

Runs inside tritonserver. `stamps.json` beside it has the pace and the first stamp ids (their meaning:
loadtest/mock_engine/native/wire.h). One thread steps all requests, in groups spread over the interval, as the mock
engine does.
"""

# ruff: noqa: TID251 - the path can only come from the environment: Triton's stub ignores PYTHONPATH
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any  # pb_utils publishes no types

sys.path.insert(0, os.environ["CROSSOVER_SITE_PACKAGES"])  # set by engines/triton.py; another numpy sends empty tensors

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
PLACE_EVERY, PLACE_VALUES = 8, 10_000
TICK_NS, TICKS = 10_000, 100_000
CANCEL_CHECK_EVERY = 5  # steps: a check for cancellation costs as much as a token


class Stream:
    """One request that is being answered."""

    def __init__(self, request: Any, group: int) -> None:
        self.sender = request.get_response_sender()
        self.tokens = read(request, "request_output_len", 1)
        self.number = read(request, "seed", 0) % 65_536
        self.group = group
        self.sent = 0

    def step(self, stamps: "Stamps") -> bool:
        """Sends one token. Returns whether the stream continues."""
        if self.sent % CANCEL_CHECK_EVERY == 0 and self.sender.is_cancelled():
            self.sender.send(flags=FINAL)
            return False
        token_id = stamps.id(self.number, self.sent)
        self.sent += 1
        ids = pb_utils.Tensor("output_ids", np.array([[[token_id]]], np.int32))
        length = pb_utils.Tensor("sequence_length", np.array([[1]], np.int32))
        is_last = self.sent >= self.tokens
        self.sender.send(pb_utils.InferenceResponse([ids, length]), flags=FINAL if is_last else 0)
        return not is_last


class Stamps:
    def __init__(self, values: Mapping[str, int]) -> None:
        self._first_time = values["first_time"]
        self._first_place = values["first_place"]

    def id(self, stream: int, place: int) -> int:
        if place % PLACE_EVERY == PLACE_EVERY - 1:
            return self._first_place + (131 * stream + place // PLACE_EVERY) % PLACE_VALUES
        return self._first_time + time.monotonic_ns() // TICK_NS % TICKS


class TritonPythonModel:
    """Triton loads the class of this name."""

    def initialize(self, args: Mapping[str, str]) -> None:
        values = json.loads(Path(__file__).with_name("stamps.json").read_text())
        self._stamps = Stamps(values)
        self._groups = int(values["groups"])
        self._tick_s = values["interval_us"] / 1e6 / self._groups
        self._streams: dict[Stream, None] = {}
        self._count = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self._streams[Stream(request, self._count % self._groups)] = None
            self._count += 1

    def finalize(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        due, tick = time.monotonic(), 0
        while not self._closing.is_set():
            due = max(due + self._tick_s, time.monotonic() - 0.05)
            time.sleep(max(0.0, due - time.monotonic()))
            tick += 1
            for stream in [each for each in list(self._streams) if each.group == tick % self._groups]:
                self._step(stream)

    def _step(self, stream: Stream) -> None:
        try:
            goes_on = stream.step(self._stamps)
        # Outermost edge of the thread: without it an error of one stream would stop all others.
        except Exception:  # noqa: BLE001 - logged by Triton
            pb_utils.Logger.log_error(traceback.format_exc())
            goes_on = False
        if not goes_on:
            del self._streams[stream]


def read(request: Any, name: str, otherwise: int) -> int:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return otherwise if tensor is None else int(tensor.as_numpy().ravel()[0])
