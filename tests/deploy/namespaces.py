"""Hosts of a small network as Linux network namespaces around one bridge, which is in the namespace of the first.

In: names and addresses. Out: commands and sockets that live on such a host. Needs root and iproute2.
"""

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
PREFIX = "/24"


@dataclass(frozen=True, slots=True)
class Host:
    """`namespace` is its name for `ip netns`; `name` also that of its end of the cable at the bridge."""

    name: str
    namespace: str
    address: str

    def command(self, *command: str) -> tuple[str, ...]:
        """`command` on this host; it takes the place of `ip`, so its process is the one that is started."""
        return ("ip", "netns", "exec", self.namespace, *command)

    def make_socket(self, make: Callable[[], socket.socket] = socket.socket) -> socket.socket:
        """A socket belongs to the namespace of the thread that made it, whoever uses it later."""
        with ThreadPoolExecutor(1) as thread:  # which ends with the block, so nobody else runs in that namespace
            return thread.submit(self._enter_and, make).result()

    def vanish(self) -> None:
        """As by a cut cable: nothing is reset or closed, packets are no longer answered."""
        run("-n", self.namespace, "address", "delete", self.address + PREFIX, "dev", "eth0")

    def reappear(self) -> None:
        run("-n", self.namespace, "address", "add", self.address + PREFIX, "dev", "eth0")

    def _enter_and(self, make: Callable[[], socket.socket]) -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.namespace).open("rb") as namespace:
            if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        return make()


def run(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    name = f"probe{os.getpid()}"
    try:
        run("netns", "add", name)
        run("-n", name, "link", "add", "bridge", "type", "bridge")
        run("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "other")
    except subprocess.CalledProcessError as exc:
        return f"no networks of one's own: {exc.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    return None


@contextmanager
def network(addresses: Mapping[str, str]) -> Iterator[Mapping[str, Host]]:
    """One host for each address, all of them neighbours."""
    hosts = {name: Host(name, f"xo{os.getpid()}-{name}", address) for name, address in addresses.items()}
    first, *others = hosts.values()
    try:
        for host in hosts.values():
            run("netns", "add", host.namespace)
            run("-n", host.namespace, "link", "set", "lo", "up")
        run("-n", first.namespace, "link", "add", "eth0", "type", "bridge")
        for host in others:
            ends = ("link", "add", "eth0", "type", "veth", "peer", "name", host.name, "netns", first.namespace)
            run("-n", host.namespace, *ends)
            run("-n", first.namespace, "link", "set", host.name, "master", "eth0", "up")
        for host in hosts.values():
            host.reappear()
            run("-n", host.namespace, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for host in hosts.values():
            subprocess.run(["ip", "netns", "delete", host.namespace], check=False, capture_output=True)
