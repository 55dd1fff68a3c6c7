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
from gateway.client_http import ClientConnection
from gateway.commands.serving import Serving

KEEP_ALIVE_S = (
    75  # longer than clients keep idle connections (aiohttp 15 s), so that they close first and lose no request
)
TICK_S = 1.0  # for the date of answers
LATE_S = 0.5  # for whoever was let in as the door closed, to say what it wants


class Server(uvicorn.Server):
    """Says when it is ready, and ends what the drain time does not."""

    def __init__(self, gateway: Gateway, serving: Serving, on_ready: Callable[[], object]) -> None:
        super().__init__(_configure(gateway, serving))
        self._gateway = gateway
        self._drain_timeout_s = serving.drain_timeout_s
        self._on_ready = on_ready
        self._leash: socket.socket | None = None
        self._exit = asyncio.Event()

    def end_with(self, leash: socket.socket) -> None:
        """End as by a signal once the other end of `leash` is closed: whoever held it is gone."""
        self._leash = leash

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal. Raises SystemExit(1) when it cannot start."""
        try:
            super().run(sockets)
        except SystemExit as exc:  # uvicorn's word for a start that failed, with the cause logged
            raise SystemExit(1) from exc

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which raises the signal once more in the end: the process would die of it, not exit with 0."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._leash is not None:
            asyncio.get_running_loop().add_reader(self._leash, self._end, self._leash)
        await super().startup(sockets)
        # What has been loaded stays; the collector would walk it in every full collection: 0.1 s without a token.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)  # a request leaves nothing for it to find; young objects die by count
        # How long a thread that reads a long prompt may keep the loop waiting for the interpreter; 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        if not self.should_exit:
            self._on_ready()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes up ten times a second to see whether it is to end; this one is told."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._exit.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._exit.set()  # the signal itself has woken the loop up

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop_calibrating()
        # uvicorn cancels what is left in the end, which cuts streams off in silence.
        loop = asyncio.get_running_loop()
        loop.call_later(self._drain_timeout_s, self._gateway.stop_answering)
        # uvicorn closes the idle connections it knows of. The loop has accepted some of which it tells only now: one of
        # those on which nothing is asked would be waited for until the drain time is over.
        loop.call_later(LATE_S, self._close_idle)
        await super().shutdown(sockets)

    def _close_idle(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
            if isinstance(connection, ClientConnection):
                connection.stop_waiting()

    def _end(self, leash: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(leash)
        self.should_exit = True
        self._exit.set()


def _configure(gateway: Gateway, serving: Serving) -> uvicorn.Config:
    return uvicorn.Config(
        gateway,
        loop="uvloop",
        http=ClientConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=serving.access_log,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=serving.end_timeout_s,
    )
