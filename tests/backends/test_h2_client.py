"""When the HTTP/2 client opens, shares, retires and closes connections; on real sockets, against a script."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.backends.rpc.call import Status
from gateway.backends.rpc.h2_client import H2Client
from gateway.backends.rpc.h2_frames import ErrorCode
from gateway.backends.rpc.unary import RpcError, unary
from tests.fakes.h2 import (
    INITIAL_WINDOW,
    MAX_STREAMS,
    Conversation,
    Server,
    answer_all,
    goaway,
    say_nothing,
    settings,
    window_update,
)
from tests.fakes.receiver import RecordingReceiver
from tests.fakes.sink import settled

PATH = "/package.Service/Method"
SHORT_S = 0.3


@asynccontextmanager
async def client_to(port: int, *, connect_timeout_s: float = 5.0) -> AsyncIterator[H2Client]:
    """Checks that closing leaves no connection and no task."""
    client = H2Client("127.0.0.1", port, connect_timeout_s=connect_timeout_s)
    yield client
    await client.aclose()
    assert not client._links
    assert client._connecting is None or client._connecting.done()


@asynccontextmanager
async def joined(
    react: Callable[[Conversation], None] = answer_all, greeting: bytes | None = None
) -> AsyncIterator[tuple[Server, H2Client]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(react, greeting).serving())
        client = await stack.enter_async_context(client_to(server.port))
        yield server, client


def call(client: H2Client, request: bytes = b"hello") -> RecordingReceiver:
    receiver = RecordingReceiver()
    receiver.stream = client.start(PATH, request, receiver)
    assert receiver.outcome is None
    return receiver


async def has_whole_requests(server: Server, count: int) -> None:
    def is_so() -> bool:
        return sum(len(conversation.unanswered) for conversation in server.conversations) == count

    await settled(is_so, f"{count} requests at the server")


async def test_calls_share_one_connection() -> None:
    async with joined() as (server, client):
        receivers = [call(client, bytes([number])) for number in range(50)]
        for number, receiver in enumerate(receivers):
            assert (await receiver.ended()).status is Status.OK
            assert receiver.received == [bytes([number])]
        assert (await call(client).ended()).status is Status.OK
        assert len(server.conversations) == 1


def answer_without_a_message(conversation: Conversation) -> None:
    for stream_id in conversation.unanswered:
        conversation.answer(stream_id)


async def test_unary_gives_the_one_response_or_raises() -> None:
    async with joined() as (server, client):
        assert await unary(client, PATH, b"hello") == b"hello"
        server.react = answer_without_a_message
        with pytest.raises(RpcError, match="INTERNAL"):
            await unary(client, PATH, b"hello")
        server.react = Conversation.abort
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await unary(client, PATH, b"hello")


async def test_a_unary_call_that_is_given_up_is_reset() -> None:
    async with joined(say_nothing) as (server, client):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await unary(client, PATH, b"hello")
        await settled(lambda: server.open[0].peer.resets == {1: ErrorCode.CANCEL}, "the reset")


async def test_requests_wait_for_a_server_that_does_not_read_and_can_still_be_left() -> None:
    held: list[asyncio.Transport] = []

    def hold_once(conversation: Conversation) -> None:
        if not held:
            held.append(conversation._transport)
            held[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            held[0].pause_reading()
        for stream_id in conversation.unanswered:
            conversation.answer(stream_id, b"done")

    wide = settings({INITIAL_WINDOW: 2**30}) + window_update(0, 2**30)
    async with joined(hold_once, wide) as (server, client):
        first = call(client, bytes(10_000_000))  # more than the socket's buffers hold
        await settled(lambda: any(link.connection._is_paused for link in client._links), "a full socket")
        left, last = call(client, b"left"), call(client, b"last")
        left.cancel()
        held[0].resume_reading()
        assert (await first.ended()).status is Status.OK
        assert (await last.ended()).status is Status.OK
        assert [request.is_whole for request in server.conversations[0].peer.requests.values()] == [True, False, True]


async def test_when_a_connection_is_full_a_further_one_is_opened_and_calls_begin_in_order() -> None:
    async with joined(say_nothing, settings({MAX_STREAMS: 4})) as (server, client):
        receivers = [call(client, bytes([number])) for number in range(10)]
        await has_whole_requests(server, 10)
        asked = [[request.content for request in c.peer.requests.values()] for c in server.conversations]
        assert asked == [[bytes([n]) for n in range(4)], [bytes([n]) for n in range(4, 8)], [b"\x08", b"\x09"]]
        for conversation in server.conversations:
            answer_all(conversation)
        for receiver in receivers:
            assert (await receiver.ended()).status is Status.OK
        await settled(lambda: len(server.open) == 1, "the spare connections closed")
        again = call(client)
        await has_whole_requests(server, 1)
        answer_all(server.open[0])
        assert (await again.ended()).status is Status.OK


async def test_calls_wait_in_order_for_room_when_there_is_no_further_connection() -> None:
    async with joined(say_nothing, settings({MAX_STREAMS: 1})) as (server, client):
        receivers = [call(client, b"0")]
        await has_whole_requests(server, 1)
        assert server._server is not None
        server._server.close()
        receivers += [call(client, b"1"), call(client, b"2")]
        await asyncio.sleep(SHORT_S)
        assert [receiver.outcome for receiver in receivers] == [None] * 3
        server.react = answer_all
        answer_all(server.open[0])
        for number, receiver in enumerate(receivers):
            assert (await receiver.ended()).status is Status.OK
            assert receiver.received == [str(number).encode()]
        assert len(server.conversations) == 1


async def test_a_server_that_takes_no_calls_at_all_is_unavailable() -> None:
    async with joined(answer_all, settings({MAX_STREAMS: 0})) as (server, client):
        assert (await call(client).ended()).status is Status.UNAVAILABLE
        await settled(lambda: not server.open, "the useless connection closed")


async def test_a_call_that_is_cancelled_while_it_waits_never_begins() -> None:
    async with joined(say_nothing) as (server, client):
        first, second = call(client, b"1"), call(client, b"2")
        first.cancel()
        await has_whole_requests(server, 1)
        assert [request.content for request in server.open[0].peer.requests.values()] == [b"2"]
        assert (first.breaches, second.outcome) == ([], None)


# Going away, dying, coming back.


async def test_after_goaway_new_calls_use_a_new_connection_and_running_ones_end_on_the_old() -> None:
    async with joined(say_nothing) as (server, client):
        running = call(client)
        await has_whole_requests(server, 1)
        old = server.open[0]
        old.send(goaway(1))
        await settled(lambda: "draining" in repr(client), "the client having received")
        server.react = answer_all
        assert (await call(client).ended()).status is Status.OK
        assert len(server.conversations) == 2
        assert running.outcome is None
        answer_all(old)
        assert (await running.ended()).status is Status.OK
        await settled(lambda: old.is_over, "the old connection closed")


async def test_leaving_the_last_call_of_a_server_going_away_from_inside_it_closes_the_connection() -> None:
    async with joined(say_nothing) as (server, client):
        receiver = RecordingReceiver(RecordingReceiver.cancel)
        receiver.stream = client.start(PATH, b"hello", receiver)
        await has_whole_requests(server, 1)
        conversation = server.open[0]
        conversation.send(goaway(1), conversation.peer.answer(1, b"a", b"b"))
        await settled(lambda: conversation.is_over, "the connection closed")
        assert (receiver.received, receiver.breaches) == ([b"a", b"b"], [])


@pytest.mark.parametrize("leave", [Conversation.abort, Conversation.close])
async def test_a_lost_connection_ends_its_calls_and_the_next_call_opens_another(
    leave: Callable[[Conversation], None],
) -> None:
    async with joined(say_nothing) as (server, client):
        receivers = [call(client) for _ in range(3)]
        await has_whole_requests(server, 3)
        leave(server.open[0])
        for receiver in receivers:
            assert (await receiver.ended()).status is Status.UNAVAILABLE
        server.react = answer_all
        assert (await call(client).ended()).status is Status.OK


async def test_a_refusing_server_is_left_alone_for_a_moment_and_then_found_again() -> None:
    async with joined() as (server, client):
        await server.stop()
        attempts = 0
        for _ in range(40):
            assert (await call(client).ended()).status is Status.UNAVAILABLE
            attempts = client._failures
        assert 1 <= attempts < 10
        await server.listen()

        async def is_back() -> bool:
            return (await call(client).ended()).status is Status.OK

        async with asyncio.timeout(20):
            while not await is_back():  # noqa: ASYNC110 - asked for by calling, as a prober does
                await asyncio.sleep(0.02)
        assert client._failures == 0


async def test_a_server_that_never_sends_its_settings_is_unavailable_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with client_to(mute.getsockname()[1], connect_timeout_s=SHORT_S) as client:
            assert (await call(client).ended()).status is Status.UNAVAILABLE


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 40, b"SSH-2.0-OpenSSH_9.2\r\n", b""])
async def test_a_server_of_another_protocol_or_one_that_leaves_is_unavailable(greeting: bytes) -> None:
    async with joined(answer_all if greeting else Conversation.abort, greeting) as (server, client):
        assert (await call(client).ended()).status is Status.UNAVAILABLE
        await settled(lambda: not server.open, "the connection closed")


async def test_after_renewing_new_calls_use_a_new_connection() -> None:
    async with joined(say_nothing) as (server, client):
        stuck = call(client)
        await has_whole_requests(server, 1)
        client.renew()
        server.react = answer_all
        assert (await call(client).ended()).status is Status.OK
        assert (stuck.outcome, len(server.open)) == (None, 2)
        stuck.cancel()
        await settled(lambda: len(server.open) == 1, "the old connection closed")


# Closing.


async def test_closing_ends_calls_that_run_and_calls_that_wait() -> None:
    async with Server(say_nothing, settings({MAX_STREAMS: 1})).serving() as server:
        client = H2Client("127.0.0.1", server.port, connect_timeout_s=5.0)
        running = call(client)
        await has_whole_requests(server, 1)
        waiting = call(client)
        await client.aclose()
        for receiver in (running, waiting):
            assert (await receiver.ended()).status is Status.UNAVAILABLE
        late = call(client)
        assert (await late.ended()).status is Status.UNAVAILABLE
        await settled(lambda: not server.open, "every connection closed")
        assert server.conversations[0].peer.goaways == [ErrorCode.NO_ERROR]


async def test_closing_does_not_wait_for_a_server_that_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = H2Client("127.0.0.1", listening.getsockname()[1], connect_timeout_s=5.0)
        receiver = call(client, bytes(30_000_000))
        deaf, _ = await asyncio.to_thread(listening.accept)
        with deaf:
            deaf.sendall(settings({INITIAL_WINDOW: 2**31 - 1}) + window_update(0, 2**30))
            links = client._links
            await settled(lambda: any(link._transport.get_write_buffer_size() for link in links), "a full buffer")
            await client.aclose()
        assert (await receiver.ended()).status is Status.UNAVAILABLE


async def test_an_answer_in_the_same_read_as_the_end_of_the_connection_is_delivered() -> None:
    def answer_and_leave(conversation: Conversation) -> None:
        if conversation.unanswered:
            answer_all(conversation)
            conversation.close()

    async with joined(answer_and_leave) as (_, client):
        receiver = call(client)
        assert (await receiver.ended()).status is Status.OK
        assert receiver.received == [b"hello"]


async def test_an_address_of_ipv6_is_reached_and_named_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    loop = asyncio.get_running_loop()
    server = Server()
    try:
        listening = await loop.create_server(lambda: Conversation(server), "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    client = H2Client("::1", listening.sockets[0].getsockname()[1], connect_timeout_s=5.0)
    assert (await call(client).ended()).status is Status.OK
    assert server.conversations[0].peer.requests[1].fields[":authority"].startswith("[::1]:")
    await client.aclose()
    listening.close()
