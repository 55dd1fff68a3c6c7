"""A Triton Python model with TensorRT-LLM's tensors that streams one id every PACE_S to each request: for measurements.

Runs inside tritonserver. The ids of an answer count up from 65.
"""

# ruff: noqa: TID251 - a variable of the process is the only way in: Triton's stub ignores PYTHONPATH
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any  # pb_utils publishes no types

sys.path.insert(0, os.environ["CROSSOVER_SITE_PACKAGES"])  # set by engines/triton.py; another numpy sends empty tensors

import numpy as np
import triton_python_backend_utils as pb_utils

PACE_S = 0.020
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """The name Triton looks for."""

    def execute(self, requests: Sequence[Any]) -> None:
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "request_output_len").as_numpy().ravel()[0])
            threading.Thread(target=stream, args=(request.get_response_sender(), count), daemon=True).start()


def stream(sender: Any, count: int) -> None:
    due = time.monotonic()
    for number in range(count):
        due += PACE_S
        time.sleep(max(0.0, due - time.monotonic()))
        if sender.is_cancelled():
            sender.send(flags=FINAL)
            return
        ids = pb_utils.Tensor("output_ids", np.array([[[65 + number]]], np.int32))
        length = pb_utils.Tensor("sequence_length", np.array([[1]], np.int32))
        sender.send(pb_utils.InferenceResponse([ids, length]), flags=FINAL if number + 1 == count else 0)
