"""A real gRPC server's bytes, damaged at random: the client never raises, never hangs, and ends every call once."""

import asyncio
import random

import pytest

from gateway.backends.calls import End
from gateway.backends.rpc.h2_connection import Connection
from gateway.backends.rpc.h2_stream import H2Stream
from gateway.backends.triton import STREAM_INFER
from gateway.backends.triton_tensors import TensorReader, encode
from gateway.errors import BackendProtocolError
from tests.backends.conftest import REQUEST
from tests.fakes.damage import DAMAGES, as_it_was, cut_out, flip, put_in
from tests.fakes.receiver import RecordingReceiver
from tests.fakes.script import EndToken, Fault, Pause, Say, Step
from tests.fakes.triton import FakeTriton, tokens_response

pytestmark = pytest.mark.parametrize("anyio_backend", [True], ids=["uvloop"], indirect=True)

ROUNDS = 3000
SCRIPTS: tuple[tuple[Step, ...], ...] = (
    (*(Say((number,)) for number in range(20)), EndToken()),
    (Say(tuple(range(5000))), Pause(0.01), Say((1, 2)), EndToken()),
    (Say((5,)), Fault("broken")),
    (Fault("too long"),),
)


def begin(connection: Connection) -> list[RecordingReceiver]:
    """One call for each script."""
    receivers = []
    for number in range(len(SCRIPTS)):
        receiver = RecordingReceiver()
        stream = H2Stream(STREAM_INFER, encode(REQUEST, "tensorrt_llm", str(number)).SerializeToString(), receiver)
        stream.holder = connection
        receiver.stream = stream
        connection.open(stream)
        receivers.append(receiver)
    return receivers


@pytest.fixture
async def recorded() -> bytes:
    """The bytes that grpc's own server sends to one call for each script."""
    async with FakeTriton().serving() as engine:
        engine.script = lambda asked: SCRIPTS[int(str(asked.raw["id"]))]
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        connection = Connection("engine")
        receivers = begin(connection)
        wire = b""
        async with asyncio.timeout(20):
            while any(receiver.outcome is None for receiver in receivers):
                writer.write(connection.data_to_send())
                data = await reader.read(65_536)
                assert data
                wire += data
                connection.receive(data)
        writer.close()
        await writer.wait_closed()
    assert [len(receiver.received) for receiver in receivers] == [21, 3, 2, 1]
    return wire


def feed(draw: random.Random, connection: Connection, wire: bytes) -> None:
    at = 0
    while at < len(wire):
        size = draw.choice((1, 9, 14, 100, 1000, len(wire)))
        connection.receive(wire[at : at + size])
        connection.data_to_send()
        at += size


@pytest.mark.timeout(180)
def test_damaged_answers_end_every_call_once(recorded: bytes) -> None:
    outcomes = set()
    for seed in range(ROUNDS):
        draw = random.Random(seed)
        connection = Connection("engine")
        receivers = begin(connection)
        leaving = draw.choice((None, None, draw.randrange(len(receivers))))
        if leaving is not None:
            receivers[leaving].cancel()
        damage = draw.choice(DAMAGES)
        feed(draw, connection, damage(draw, recorded))
        connection.end_streams("the end of the test")
        for number, receiver in enumerate(receivers):
            assert receiver.breaches == [], (seed, damage)
            assert (receiver.outcome is None) == (number == leaving), (seed, damage)
        assert not connection.streams
        assert not connection._unsent
        outcomes |= {receiver.status for receiver in receivers}
    assert len(outcomes) > 3  # the damage had effects


@pytest.mark.timeout(180)
def test_damaged_messages_are_read_as_parsing_reads_them() -> None:
    """Reading a message by its layout returns what parsing it returns."""
    felt = 0
    for seed in range(ROUNDS):
        draw = random.Random(seed)
        quick, slow = TensorReader("triton", REQUEST), TensorReader("triton", REQUEST)
        for token_id in (5, 6, 7):
            whole = tokens_response("id", [token_id], is_final=False).SerializeToString()
            message = draw.choice((flip, cut_out, put_in, as_it_was, as_it_was))(draw, whole)
            slow._layouts_left = 0
            said: list[tuple[list[int], type | End | None]] = []
            for answer in (quick, slow):
                token_ids, end = answer.read([message])
                said.append((list(token_ids), type(end) if isinstance(end, Exception) else end))
            assert said[0] == said[1], seed
            felt += said[0][1] is BackendProtocolError
    assert felt > 100
