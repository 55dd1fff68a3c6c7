"""A TCP proxy before an engine that damages on purpose what passes: the faults, and the proxies of a stack in a thread.

In: a Fault for each engine, which can change at any time. Out: bytes, late, wrong or not at all. Knows no gateway.
"""

import asyncio
import random
import re
import socket
import struct
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import ClassVar

from deploy.ports import LOCALHOST
from tests.fakes import h2

PIECE = 65_536
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


class Link:
    """One connection of the gateway's, and the proxy's own to the engine."""

    def __init__(self, gateway: asyncio.StreamWriter, engine: asyncio.StreamWriter) -> None:
        self.gateway = gateway
        self.engine = engine
        self.generates = False  # it carries answers, not only probes
        self.is_deaf = False  # for good: what was dropped does not come again
        self.answered = 0  # bytes of answers that have passed since its fault began
        self.pending = b""  # a frame of which the rest is still to come

    def reset(self) -> None:
        for writer in (self.gateway, self.engine):
            connection = writer.get_extra_info("socket")
            if connection is not None and connection.fileno() >= 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()


class Fault:
    """Lets everything pass. `resets`: open connections and new ones are reset. `harmed`: how often it has done harm."""

    resets: ClassVar[bool] = False

    def __init__(self) -> None:
        self.harmed = 0

    async def ask(self, link: Link, data: bytes) -> None:
        link.engine.write(data)
        await link.engine.drain()

    async def answer(self, link: Link, data: bytes) -> None:
        link.gateway.write(data)
        await link.gateway.drain()


class Reset(Fault):
    resets = True


class BlackHole(Fault):
    """Accepts connections, reads, and never answers; what was open is dead, and stays so."""

    async def ask(self, link: Link, data: bytes) -> None:
        link.is_deaf = True
        self.harmed += 1

    async def answer(self, link: Link, data: bytes) -> None:
        await self.ask(link, data)


class OfAnswers(Fault):
    """Harms generations after `after` bytes of their answers; probes on connections of their own pass."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self._after = after

    async def answer(self, link: Link, data: bytes) -> None:
        if not link.generates:
            await super().answer(link, data)
            return
        whole = data[: max(self._after - link.answered, 0)]
        link.answered += len(data)
        if whole:
            await super().answer(link, whole)
        if len(whole) < len(data):
            self.harmed += 1
            await self.harm(link, data[len(whole) :])

    async def harm(self, link: Link, data: bytes) -> None:
        raise NotImplementedError


class Silence(OfAnswers):
    async def harm(self, link: Link, data: bytes) -> None:
        link.is_deaf = True


class HalfClose(OfAnswers):
    """The engine's side ends in the middle; the gateway's stays open."""

    async def harm(self, link: Link, data: bytes) -> None:
        link.is_deaf = True
        with suppress(OSError):
            link.gateway.write_eof()


class Garbage(OfAnswers):
    async def harm(self, link: Link, data: bytes) -> None:
        link.gateway.write(random.Random(len(data)).randbytes(len(data)))
        await link.gateway.drain()


class Canned(OfAnswers):
    """One answer in place of all, and the end of the connection."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    async def harm(self, link: Link, data: bytes) -> None:
        link.is_deaf = True
        link.gateway.write(self._answer)
        link.gateway.close()


class Drip(Fault):
    """Passes a few bytes at a time, slowly."""

    def __init__(self, size: int = 48, pause_s: float = 0.001) -> None:
        super().__init__()
        self._size = size
        self._pause_s = pause_s

    async def answer(self, link: Link, data: bytes) -> None:
        self.harmed += 1
        for start in range(0, len(data), self._size):
            await super().answer(link, data[start : start + self._size])
            await asyncio.sleep(self._pause_s)


class Rewritten(OfAnswers):
    """What matches is replaced in each piece of an HTTP answer."""

    def __init__(self, found: bytes, instead: bytes) -> None:
        super().__init__()
        self._found = re.compile(found)
        self._instead = instead

    async def harm(self, link: Link, data: bytes) -> None:
        link.gateway.write(self._found.sub(self._instead, data))
        await link.gateway.drain()


class WrongFrames(OfAnswers):
    """Every gRPC message says that it is `longer` bytes longer than it is; or every HTTP/2 frame, if `of_frames`."""

    def __init__(self, longer: int, *, of_frames: bool = False) -> None:
        super().__init__()
        self._longer = longer
        self._of_frames = of_frames

    async def harm(self, link: Link, data: bytes) -> None:
        link.pending += data
        while len(link.pending) >= 9 and len(link.pending) >= (end := 9 + int.from_bytes(link.pending[:3], "big")):
            frame, link.pending = link.pending[:end], link.pending[end:]
            link.gateway.write(self._damage(frame) if frame[3] == h2.DATA and len(frame) >= 14 else frame)
        await link.gateway.drain()

    def _damage(self, frame: bytes) -> bytes:
        at, size = (0, 3) if self._of_frames else (10, 4)
        length = int.from_bytes(frame[at : at + size], "big") + self._longer
        return frame[:at] + max(length, 0).to_bytes(size, "big") + frame[at + size :]


class Proxy:
    """Stands before one engine's port. All of it runs in the loop of its thread."""

    def __init__(self, engine_port: int) -> None:
        self._engine_port = engine_port
        self._fault = Fault()
        self._links: set[Link] = set()
        self.port = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._join, LOCALHOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def end(self) -> None:
        self._server.close()
        for link in tuple(self._links):
            link.reset()
        await self._server.wait_closed()

    async def put(self, fault: Fault) -> None:
        self._fault = fault
        for link in tuple(self._links):
            link.answered, link.pending = 0, b""
            if fault.resets:
                fault.harmed += 1
                link.reset()

    async def _join(self, reader: asyncio.StreamReader, gateway: asyncio.StreamWriter) -> None:
        try:
            replies, engine = await asyncio.open_connection(LOCALHOST, self._engine_port)
        except OSError:
            gateway.transport.abort()
            return
        link = Link(gateway, engine)
        self._links.add(link)
        try:
            if self._fault.resets:
                link.reset()
                return
            async with asyncio.TaskGroup() as pumps:
                replying = pumps.create_task(self._pump_answers(link, replies))
                await self._pump_requests(link, reader)
                replying.cancel()
        except* OSError:
            pass  # either side has gone
        finally:
            self._links.discard(link)
            for writer in (gateway, engine):
                writer.transport.abort()

    async def _pump_requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(PIECE):
            if data.startswith((b"POST ", b"GET ", b"PRI ")):  # a request of HTTP/1.1, or a connection of HTTP/2
                link.generates, link.answered = not data.startswith(b"GET "), 0
            if not link.is_deaf:
                await self._fault.ask(link, data)

    async def _pump_answers(self, link: Link, replies: asyncio.StreamReader) -> None:
        while data := await replies.read(PIECE):
            if not link.is_deaf:
                await self._fault.answer(link, data)
        if not link.is_deaf:
            link.gateway.close()


class Proxies:
    """One proxy for each engine, in a thread of their own: they serve while a stack starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxies: Mapping[str, Proxy]) -> None:
        self._loop = loop
        self._proxies = proxies

    @property
    def ports(self) -> Mapping[str, int]:
        return {name: proxy.port for name, proxy in self._proxies.items()}

    def put(self, name: str, fault: Fault) -> None:
        """From any thread; it is in force on return."""
        asyncio.run_coroutine_threadsafe(self._proxies[name].put(fault), self._loop).result(5)

    @contextmanager
    def broken(self, name: str, fault: Fault) -> Iterator[None]:
        """Until the block is left, for any reason."""
        self.put(name, fault)
        try:
            yield
        finally:
            self.put(name, Fault())


@contextmanager
def proxied(engine_ports: Mapping[str, int]) -> Iterator[Proxies]:
    with ExitStack() as exits:
        loop = asyncio.new_event_loop()
        exits.callback(loop.close)
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        exits.callback(thread.join, 5)
        exits.callback(loop.call_soon_threadsafe, loop.stop)
        proxies = {name: Proxy(port) for name, port in engine_ports.items()}
        for proxy in proxies.values():
            asyncio.run_coroutine_threadsafe(proxy.listen(), loop).result(5)
        exits.callback(lambda: asyncio.run_coroutine_threadsafe(_end(proxies.values()), loop).result(5))
        yield Proxies(loop, proxies)


async def _end(proxies: Collection[Proxy]) -> None:
    for proxy in proxies:
        await proxy.end()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
