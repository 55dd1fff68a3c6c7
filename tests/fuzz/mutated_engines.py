"""A process with three engines: a sound vLLM, and a vLLM and a Triton whose every answer is damaged.

`python -m tests.fuzz.mutated_engines SEED` prints their ports as JSON and serves until its input ends. The damaged ones
answer probes as they should, and close what is idle. `GET /count` of the damaged vLLM returns how many answers each
has damaged.
"""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import httptools
import orjson
import uvloop
from tritonclient.grpc import service_pb2

from gateway.backends.triton import MODEL_CONFIG, MODEL_READY, SERVER_READY, STREAM_INFER
from tests.fakes import h2
from tests.fakes.damage import DAMAGES, as_it_was
from tests.fakes.openai import STREAM, chunk, chunked, sized
from tests.fakes.script import EndToken, Say
from tests.fakes.triton import model_config, tokens_response
from tests.fakes.vllm import COMPLETIONS, GENERATE, FakeVLLM, error_body

WEIGHTS = Path(__file__).parents[2] / "engines" / "reference" / "weights"
HUGE = 4_000_000
READINESS = {
    SERVER_READY: service_pb2.ServerReadyResponse(ready=True),
    MODEL_READY: service_pb2.ModelReadyResponse(ready=True),
    MODEL_CONFIG: model_config({"input_ids": [-1]}, {}),
}


def event(token_ids: Sequence[object], reason: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "token_ids": token_ids, "finish_reason": reason, "delta": {"content": "Paris"}, **more}
    return chunk(b"data: " + orjson.dumps({"id": "x", "choices": [choice]}) + b"\n\n")


DONE = chunked(b"data: [DONE]\n\n")


def usage_of(count: str) -> bytes:
    return b'{"object":"x","usage":{"prompt_tokens":%b,"completion_tokens":%b},"choices":[]}' % ((count.encode(),) * 2)


SOUND = STREAM + b"".join(event([number]) for number in range(20, 40)) + event([1], "stop") + DONE
# What damage by chance does not come to: each held up, filled up or confused some part of the gateway once.
MALICE = (
    STREAM + chunk(b"data: " + b"x" * HUGE), STREAM + b"%x\r\n" % HUGE + b"x" * HUGE,
    STREAM + chunk(b'data: {"choices":[' + b"[]," * (HUGE // 3) + b"[]]}\n\n") + DONE,
    STREAM + event([20]) + b"1\r\nx\r\n" * 50_000, STREAM + event([20]) + chunk(b":\n\n" * (HUGE // 3)) + DONE,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 40_000, b"HTTP/1.1 200 OK\r\nx: " + b"x" * HUGE,
    STREAM + event([], "length") + DONE, STREAM + event([2**40]) + DONE, STREAM + event([20], "x" * HUGE) + DONE,
    STREAM + event([20] * 100_000, "length") + DONE,
    *(sized(usage_of(count)) for count in ("99999999999999999999", "9" * 5000, "-5", "1e99", "[]")),
    *(STREAM + event([20]) + chunk(b"data: %b\n\n" % usage_of(count)) + DONE for count in ("9" * 30, "-5", "[]")),
    sized(error_body(400, "x" * HUGE, "y"), 400), sized(b"[" * 100_000),
)  # fmt: skip


IDLE_S = 1.0


class Counts:
    http = grpc = 0


class DamagedHTTP(asyncio.Protocol):
    """A vLLM's connection. Half of them are closed after an answer, as a broken server's are."""

    def __init__(self, draw: random.Random, counts: Counts) -> None:
        self._draw = draw
        self._counts = counts
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_message_complete(self) -> None:
        self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._transport.close)
        if self._path in {GENERATE.encode(), COMPLETIONS.encode(), b"/v1/chat/completions"}:
            self._counts.http += 1
            self._transport.write(self._choose())
            if self._draw.random() < 0.5:
                self._transport.close()
        elif self._path == b"/count":
            self._transport.write(sized(orjson.dumps([self._counts.http, self._counts.grpc])))
        else:
            self._transport.write(sized(b"{}", 200 if self._path == b"/health" else 404))

    def _choose(self) -> bytes:
        draw = self._draw
        if draw.random() < 0.2:
            return draw.choice(MALICE)
        return draw.choice([damage for damage in DAMAGES if damage is not as_it_was])(draw, SOUND)


def answer_damaged(draw: random.Random, counts: Counts, conversation: h2.Conversation) -> None:
    peer = conversation.peer
    for stream_id in conversation.unanswered:
        path = peer.requests[stream_id].fields[":path"]
        if path in READINESS:
            conversation.answer(stream_id, READINESS[path].SerializeToString())
            continue
        counts.grpc += path == STREAM_INFER  # others are asked what the server and its model are
        conversation.answered.add(stream_id)
        ids = [[number] for number in range(20, 40)]
        if draw.random() < 0.2:
            ids = draw.choice(([], [[-5]], [[2**31 - 1]], [[20] * 100_000]))
        messages = [tokens_response("x", token_ids, is_final=False).SerializeToString() for token_ids in ids]
        messages.append(tokens_response("x", [], is_final=True).SerializeToString())
        if draw.random() < 0.5:  # within a message, whose frames stay whole
            place = draw.randrange(len(messages))
            messages[place] = draw.choice(DAMAGES)(draw, messages[place])
            conversation.send(peer.answer(stream_id, *messages))
        else:
            conversation.send(draw.choice(DAMAGES)(draw, peer.answer(stream_id, *messages)))
            if draw.random() < 0.5:
                conversation.close()


async def main(seed: int) -> None:
    draw, counts = random.Random(seed), Counts()
    loop = asyncio.get_running_loop()
    http = await loop.create_server(lambda: DamagedHTTP(draw, counts), "127.0.0.1", 0)
    async with (
        FakeVLLM().serving() as sound,
        h2.Server(lambda conversation: answer_damaged(draw, counts, conversation)).serving() as triton,
    ):
        sound.play(*(Say((token_id,)) for token_id in range(300, 320)), EndToken())
        ports = {"sound": sound.port, "vllm": http.sockets[0].getsockname()[1], "triton": triton.port}
        print(json.dumps(ports), flush=True)  # noqa: T201 - the test reads it
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
