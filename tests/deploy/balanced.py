"""Two gateway nodes behind HAProxy as deploy/haproxy ships it, each on a host of its own, before scripted engines.

An engine holds every answer until the test lets go of it, so the test knows what is in flight where.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_UNIX, create_server, socket

import orjson
import yaml

from tests.deploy.namespaces import Host, network
from tests.fakes.script import Asked, EndToken, Held, Pause, Say, Step
from tests.fakes.vllm import FakeVLLM
from tests.processes import find_children
from tests.serving.stack import HELLO, MODEL, TOKENIZER, RawAnswer, RawClient, eventually

CONFIGURATION = Path(__file__).parents[2] / "deploy/haproxy/haproxy.cfg"
ADDRESSES = {"balancer": "10.77.0.1", "client": "10.77.0.2", "node1": "10.77.0.11", "node2": "10.77.0.12"}
PORT = 8080
ENGINE_PORT = 8010
STARTS_WITHIN_S = 120  # two at once, on a busy machine
SOON_S = 30


@dataclass
class Node:
    """A host with a gateway and its engine."""

    host: Host
    config: Path
    engine: FakeVLLM
    process: Process | None = None
    held: list[Held] = field(default_factory=list)

    @property
    def arrived(self) -> int:
        return len(self.engine.asked)

    def hold(self, *, begins: bool) -> None:
        """Hold every answer from now on: after its first token, or before it."""

        def script(_: Asked) -> list[Step]:
            self.held.append(held := Held())
            first, rest = Say((11,)), (Say((12,)), EndToken())
            return [first, held, *rest] if begins else [held, first, *rest]

        self.engine.script = script

    def release(self) -> None:
        for held in self.held:
            held.may_go.set()
        self.held.clear()

    async def start(self) -> None:
        """The gateway, until it is ready."""
        serve = ("-c", "from gateway.cli import main; main()", "serve", "-c", str(self.config))
        with self.config.with_suffix(".log").open("ab") as log:
            command = self.host.command(sys.executable, *serve)
            self.process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=log)
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await self.process.stdout.readline()
        assert line.startswith(b"ready"), self.config.with_suffix(".log").read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kills all its processes at once, as when its host dies."""
        assert self.process is not None
        for pid in (*find_children(self.process.pid), self.process.pid):
            os.kill(pid, signal.SIGKILL)

    async def ended(self) -> int:
        """The exit code, once it has ended."""
        assert self.process is not None
        async with asyncio.timeout(SOON_S):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode

    async def close(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.communicate()


@dataclass
class Site:
    hosts: Mapping[str, Host]
    nodes: tuple[Node, Node]
    control: Path
    clients: list[RawClient] = field(default_factory=list)

    @property
    def arrived(self) -> int:
        return sum(node.arrived for node in self.nodes)

    def prepare(self, *, begins: bool) -> None:
        """How the engines hold the answers to what they are asked from now on."""
        for node in self.nodes:
            node.hold(begins=begins)

    def answer_at_once(self) -> None:
        for node in self.nodes:
            node.engine.play(Say((11,)), Pause(0.05), Say((12,)), EndToken())

    async def connect(self) -> RawClient:
        connection = self.hosts["client"].make_socket()
        connection.setblocking(False)
        async with asyncio.timeout(SOON_S):
            await asyncio.get_running_loop().sock_connect(connection, (ADDRESSES["balancer"], PORT))
        client = RawClient(*await asyncio.open_connection(sock=connection))
        self.clients.append(client)
        return client

    async def ask(self, count: int, *, length: int = 0, stream: bool = False) -> list[RawClient]:
        """So many requests at once, each on a connection of its own; all of them with an engine at the end.

        `length`: of the body at least, in bytes.
        """
        before = self.arrived
        clients = [await self.connect() for _ in range(count)]
        for client in clients:
            send(client, length, stream)
        await eventually(lambda: self.arrived == before + count, SOON_S)
        return clients

    async def answer(self) -> RawAnswer:
        """The whole answer to one request on a connection of its own."""
        client = await self.connect()
        send(client)
        async with asyncio.timeout(SOON_S):
            answer = await client.answer()
        client.writer.close()
        self.clients.remove(client)
        return answer

    async def command(self, text: str) -> str:
        """HAProxy's answer on its own socket."""
        reader, writer = await asyncio.open_unix_connection(self.control)
        writer.write(f"{text}\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return answer

    async def status(self, node: str) -> tuple[str, int]:
        """UP or DOWN, and how far on the way to the other; and its weight, which is 100 when it has started."""
        rows = (await self.command("show stat")).splitlines()
        columns = rows[0].removeprefix("# ").split(",")
        found = [dict(zip(columns, row.split(","), strict=False)) for row in rows[1:]]
        row = next(row for row in found if (row["pxname"], row["svname"]) == ("nodes", node))
        return row["status"], int(row["weight"])

    async def goes_down(self, node: Node) -> None:
        async with asyncio.timeout(SOON_S):
            while (await self.status(node.host.name))[0] != "DOWN":  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.05)

    async def comes_up(self, node: Node) -> None:
        async with asyncio.timeout(SOON_S):
            while await self.status(node.host.name) != ("UP", 100):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)

    def leave(self) -> None:
        for client in self.clients:
            client.leave()
        self.clients.clear()

    async def rest(self) -> None:
        """Nothing in flight, every node up."""
        for node in self.nodes:
            if node.process is None or node.process.returncode is not None:
                await node.start()
        self.leave()
        for node in self.nodes:
            node.release()
        await eventually(lambda: all(node.engine.running == 0 for node in self.nodes), SOON_S)
        for node in self.nodes:
            await self.comes_up(node)
            node.engine.asked.clear()
        self.prepare(begins=True)


def send(client: RawClient, length: int = 0, stream: bool = False) -> None:
    body = orjson.dumps({"model": MODEL, "messages": HELLO, "stream": stream})
    client.send("POST", "/v1/chat/completions", body.ljust(length))  # blanks after JSON are part of it


def write_config(folder: Path, name: str) -> Path:
    backends = {"vllm": {"kind": "vllm", "url": f"http://127.0.0.1:{ENGINE_PORT}"}}
    model = {"id": MODEL, "tokenizer": str(TOKENIZER), "backends": backends, "queue": {"max_outage_s": 0}}
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({
            "listen": f"0.0.0.0:{PORT}",
            "allow_anonymous": True,
            "state_folder": f"state-{name}",
            "models": [model],
        })
    )
    return path


@asynccontextmanager
async def balanced(folder: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        hosts = stack.enter_context(network(ADDRESSES))
        nodes = [await stack.enter_async_context(opened(hosts[name], folder)) for name in ("node1", "node2")]
        await asyncio.gather(*(node.start() for node in nodes))
        control = folder / "haproxy.sock"
        await stack.enter_async_context(balancing(hosts["balancer"], control))
        site = Site(hosts, (nodes[0], nodes[1]), control)
        yield site
        site.leave()


@asynccontextmanager
async def opened(host: Host, folder: Path) -> AsyncIterator[Node]:
    listener = host.make_socket(lambda: create_server(("127.0.0.1", ENGINE_PORT)))
    async with FakeVLLM().serving(listener) as engine:
        node = Node(host, write_config(folder, host.name), engine)
        try:
            yield node
        finally:
            await node.close()


def accepts(path: Path) -> bool:
    """Whether somebody listens there; HAProxy makes the file first."""
    with socket(AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@asynccontextmanager
async def balancing(host: Host, control: Path) -> AsyncIterator[None]:
    settings = {
        "CROSSOVER_BALANCER_LISTEN": f"{host.address}:{PORT}",
        "CROSSOVER_BALANCER_SOCKET": str(control),
        "CROSSOVER_NODE_SLOWSTART": "1s",
        "CROSSOVER_NODE_1": f"{ADDRESSES['node1']}:{PORT}",
        "CROSSOVER_NODE_2": f"{ADDRESSES['node2']}:{PORT}",
    }
    environment = os.environ | settings  # noqa: TID251 - a process launcher
    with control.with_suffix(".log").open("wb") as log:
        command = host.command("haproxy", "-db", "-f", str(CONFIGURATION))
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
    try:
        await eventually(lambda: accepts(control), within_s=STARTS_WITHIN_S)
        yield
    finally:
        process.kill()
        await process.wait()
