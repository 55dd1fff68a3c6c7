"""Measures, in a process of its own, what `tritonclient.grpc.aio` alone costs to receive token streams from Triton.

In: Options, as JSON in its one argument. Out: one line of JSON, the tokens and the CPU seconds of this process within a
window. The ids are taken out of every response and counted; nothing else is done with them.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any  # tritonclient publishes no types

import numpy as np
import tritonclient.grpc.aio as triton
import uvloop

PROMPT = 64


@dataclass(frozen=True, slots=True)
class Options:
    """The load. `target`: host:port of Triton's gRPC. `tokens`: the length of a stream. Times are in seconds."""

    target: str
    streams: int
    tokens: int
    ramp: float
    warm: float
    window: float


class Receiver:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._client = triton.InferenceServerClient(options.target)
        self.tokens = 0

    async def stream(self, number: int) -> None:
        """Sends one request after another, without end."""
        await asyncio.sleep(self._options.ramp * number / self._options.streams)
        while True:
            await self._receive(number)

    async def _receive(self, number: int) -> None:
        async def ask() -> AsyncIterator[dict[str, Any]]:
            inputs = make_inputs(self._options.tokens, number)
            yield {"model_name": "tensorrt_llm", "inputs": inputs, "enable_empty_final_response": True}

        async for result, error in self._client.stream_infer(ask()):
            if error is not None:
                raise error
            ids = result.as_numpy("output_ids")
            self.tokens += 0 if ids is None else len([int(token_id) for token_id in ids.ravel()])
            if result.get_response().parameters["triton_final_response"].bool_param:
                return


def make_inputs(tokens: int, number: int) -> list[Any]:
    arrays = {
        "input_ids": np.ones((1, PROMPT), np.int32),
        "input_lengths": np.array([[PROMPT]], np.int32),
        "request_output_len": np.array([[tokens]], np.int32),
        "streaming": np.array([[True]]),
        "seed": np.array([[number]], np.uint64),
    }
    datatypes = {"streaming": "BOOL", "seed": "UINT64"}
    inputs = []
    for name, array in arrays.items():
        inputs.append(triton.InferInput(name, list(array.shape), datatypes.get(name, "INT32")))
        inputs[-1].set_data_from_numpy(array)
    return inputs


async def measure(options: Options) -> dict[str, float]:
    receiver = Receiver(options)
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(receiver.stream(number)) for number in range(options.streams)]
        await asyncio.sleep(options.ramp + options.warm)
        tokens, cpu_s, began = receiver.tokens, time.process_time(), time.monotonic()
        await asyncio.sleep(options.window)
        measured = {
            "tokens": receiver.tokens - tokens,
            "cpu_s": time.process_time() - cpu_s,
            "window_s": time.monotonic() - began,
        }
        for stream in streams:
            stream.cancel()
    return measured


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(Options(**json.loads(sys.argv[1]))))))  # noqa: T201 - its output is read by another process
