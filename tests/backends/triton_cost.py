"""python -m tests.backends.triton_cost: a client's cost of receiving paced tokens from a real tritonserver.

CPU microseconds (user and system, all threads) per token: tritonclient.grpc.aio alone beside our backend into a sink
that only counts, each in a process of its own on uvloop, interleaved; medians and their ratio as one JSON line. Needs
`make stacks`. Streams begin spread over one pace, so that their tokens do not come in step.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton_aio
import uvloop

from gateway.backends.triton import TritonBackend
from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams, TokenLogprob
from gateway.errors import GatewayError
from gateway.settings import TritonSettings
from tests.engines.wires.servers import free_ports, serving

ROOT = Path(__file__).parents[2]
MODEL = "tensorrt_llm"
PACE_S = 0.020  # of tests/fakes/paced_model.py
PROMPT = tuple(range(1, 9))
WARM_TOKENS = 4

Ask = Callable[[int], Awaitable[int]]  # tokens to ask for -> tokens received


def paced_repository(folder: Path) -> Path:
    """A model repository whose `tensorrt_llm` is the paced model."""
    version = folder / MODEL / "1"
    version.mkdir(parents=True)
    shutil.copy(ROOT / "model_repo/python/tensorrt_llm/config.pbtxt", folder / MODEL)
    shutil.copy(ROOT / "tests/fakes/paced_model.py", version / "model.py")
    return folder


class CountingSink:
    """Counts, and puts the count into `ended`."""

    def __init__(self) -> None:
        self.count = 0
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def tokens(self, token_ids: Sequence[int]) -> None:
        self.count += len(token_ids)

    def scores(self, entries: Sequence[TokenLogprob]) -> None:
        pass

    def finish(self, reason: FinishReason) -> None:
        self.ended.set_result(self.count)

    def fail(self, error: GatewayError) -> None:
        self.ended.set_exception(error)


def ours(target: str) -> Ask:
    backend = TritonBackend(TritonSettings("triton", f"grpc://{target}"))

    async def ask(tokens: int) -> int:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        sink = CountingSink()
        backend.start(GenerateRequest("cost", "m", Prompt(PROMPT), params, (2,)), sink)
        return await sink.ended

    return ask


def theirs(target: str) -> Ask:
    client = triton_aio.InferenceServerClient(target)

    async def ask(tokens: int) -> int:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": MODEL, "inputs": inputs(tokens), "enable_empty_final_response": True}

        count = 0
        async for result, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            ids = result.as_numpy("output_ids")
            count += 0 if ids is None else len([int(token_id) for token_id in ids.ravel()])
            if result.get_response().parameters["triton_final_response"].bool_param:
                break
        return count

    return ask


def inputs(tokens: int) -> list[Any]:
    values = {"input_ids": [PROMPT], "input_lengths": [[len(PROMPT)]], "request_output_len": [[tokens]]}
    made = []
    for name, value in values.items():
        array = np.array(value, np.int32)
        made.append(triton_aio.InferInput(name, list(array.shape), "INT32"))
        made[-1].set_data_from_numpy(array)
    return made


CLIENTS: dict[str, Callable[[str], Ask]] = {"grpc.aio": theirs, "ours": ours}


async def measure(client: str, target: str, streams: int, tokens: int) -> float:
    """CPU microseconds per token of this process."""
    ask = CLIENTS[client](target)
    await asyncio.gather(*(ask(WARM_TOKENS) for _ in range(4)))

    async def later(number: int) -> int:
        await asyncio.sleep(number * PACE_S / streams)
        return await ask(tokens)

    before = time.process_time()
    counts = await asyncio.gather(*(later(number) for number in range(streams)))
    spent = time.process_time() - before
    if set(counts) != {tokens}:
        raise RuntimeError(f"asked for {tokens} tokens, got {sorted(set(counts))}")
    return spent / (streams * tokens) * 1e6


def measured(client: str, target: str, options: argparse.Namespace) -> float:
    """The same in a process of its own."""
    command = (
        *(sys.executable, "-m", "tests.backends.triton_cost", "--client", client, "--target", target),
        *("--streams", str(options.streams), "--tokens", str(options.tokens)),
    )
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return float(done.stdout)


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Medians over interleaved repeats, and ours over theirs."""
    grpc, http, metrics = free_ports(3)
    ports = ("--grpc-port", grpc, "--http-port", http, "--metrics-port", metrics)
    with tempfile.TemporaryDirectory() as folder:
        repository = paced_repository(Path(folder))
        with serving("engines.triton", *ports, "--model-repository", str(repository)):
            figures: dict[str, list[float]] = {client: [] for client in CLIENTS}
            for _ in range(options.repeats):
                for client, seen in figures.items():
                    seen.append(round(measured(client, f"127.0.0.1:{grpc}", options), 2))
    medians = {client: statistics.median(seen) for client, seen in figures.items()}
    return {
        "streams": options.streams,
        "tokens": options.tokens,
        "us_per_token": figures,
        "medians": medians,
        "ratio": round(medians["ours"] / medians["grpc.aio"], 3),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.backends.triton_cost", description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="per stream")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--client", choices=list(CLIENTS), help="measure this one alone, against --target")
    parser.add_argument("--target", help="host:port of a Triton that serves the paced model")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.client:
        print(uvloop.run(measure(options.client, options.target, options.streams, options.tokens)))  # noqa: T201
    else:
        print(json.dumps(compare(options)))  # noqa: T201


if __name__ == "__main__":
    main()
