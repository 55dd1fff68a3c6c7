"""One worker as a uvicorn server, from a bound socket to the last answer.

Knows uvicorn; no request, and no other worker.
"""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from gateway.app import Gateway
from gateway.client_http import CLOSE_FIELD, ClientConnection
from gateway.commands.options import READY, RETIRE, ServeOptions

# Longer than clients keep idle connections (aiohttp 15 s), so that they close first and lose no request.
KEEP_ALIVE_S = 75
TICK_S = 1.0  # for the date of answers
BEAT_S = 0.5
QUIET_S = 5.0  # after which a retired server closes an idle connection; clients reuse most connections sooner
LATE_S = 0.5  # for a connection accepted just before the listener closed to send its request


class Server(uvicorn.Server):
    """Writes READY on the leash when it accepts connections, and fails the answers that outlast the drain time.

    It ends as by a signal once the leash's other end is closed: the supervisor is gone then. RETIRE on the leash makes
    it end because others accept in its place: no client may lose a request to that. `beat` is called every BEAT_S from
    READY on, until the event loop ends.
    """

    def __init__(
        self, gateway: Gateway, options: ServeOptions, leash: socket.socket, beat: Callable[[], object]
    ) -> None:
        super().__init__(_configure(gateway, options))
        self._gateway = gateway
        self._beat = beat
        self._drain_timeout_s = options.drain_timeout_s
        self._leash = leash
        self._exit = asyncio.Event()
        self._is_retired = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal. Raises SystemExit(1) when it cannot start."""
        try:
            super().run(sockets)
        except SystemExit as exc:  # how uvicorn reports a start that failed; it has logged the cause
            raise SystemExit(1) from exc

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals; unlike uvicorn, never raises them again: the process would die of it, not exit with 0."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().add_reader(self._leash, self._end)
        await super().startup(sockets)
        # What is loaded by now stays; every full collection would walk it, which takes 0.1 s without a token.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)  # a request leaves nothing for it to find; young objects die by count
        # How long a thread that reads a long prompt may keep the loop waiting for the interpreter; 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        self._go_on_beating()
        if not self.should_exit:
            self._leash.sendall(READY)

    def _go_on_beating(self) -> None:
        self._beat()
        asyncio.get_running_loop().call_later(BEAT_S, self._go_on_beating)

    async def main_loop(self) -> None:
        """Ticks and waits for the end. uvicorn's own loop wakes up ten times a second to see whether it has to end."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._exit.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._is_retired:  # the gateway ends: from now on this is an end as any other
            self._is_retired = False
        else:
            super().handle_exit(sig, frame)
        self._exit.set()  # the signal itself has woken the loop up

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop_calibrating()
        # In the end uvicorn cancels what is left, which cuts streams off without an error event.
        loop = asyncio.get_running_loop()
        loop.call_later(self._drain_timeout_s, self._gateway.stop_answering)
        # uvicorn closes the idle connections that it knows of. The loop has accepted others that it reports only now:
        # without a request on them, each would be waited for until the drain time is over.
        if self._is_retired:
            await self._close_politely(loop.time())
        loop.call_later(LATE_S, self._close_idle)
        await super().shutdown(sockets)

    async def _close_politely(self, since: float) -> None:
        """Accepts no connection, and lets each have one more answer, which announces the connection's end.

        A client may be sending on a connection that looks idle here: closed at once, it would lose that request.
        """
        loop = asyncio.get_running_loop()
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append(CLOSE_FIELD)
        while (
            self._is_retired
            and self.server_state.connections
            and loop.time() < since + self._drain_timeout_s
            and not self.force_exit
        ):
            await asyncio.sleep(TICK_S / 10)
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, ClientConnection) and connection.is_quiet(since, QUIET_S):
                    connection.shutdown()

    def _close_idle(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
            if isinstance(connection, ClientConnection):
                connection.stop_waiting()

    def _end(self) -> None:
        with suppress(ConnectionResetError):  # the supervisor was killed before it had read READY
            self._is_retired = self._leash.recv(64) == RETIRE
        if not self._is_retired:
            asyncio.get_running_loop().remove_reader(self._leash)
        self.should_exit = True
        self._exit.set()


def _configure(gateway: Gateway, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        gateway,
        loop="uvloop",
        http=ClientConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=options.access_log,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=options.end_timeout_s,
    )
