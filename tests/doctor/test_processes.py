"""What the kernel tells of processes that listen, by processes that do."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.address import is_loopback
from gateway.doctor.processes import find_listener, is_local
from tests.engines.wires.servers import free_ports, ready_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")

# Listens on a port, or where its argument says, titles itself as vLLM's API processes do, and has a child that shares
# the socket.
LISTEN = """
import os, signal, socket, sys
path = sys.argv[1]
if path:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
else:
    listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    os.set_inheritable(listener.fileno(), True)
    os.execv(sys.executable, ["VLLM::" + "APIServer_0", "-c", "import signal; signal.pause()"])
print("ready", path or listener.getsockname()[1], flush=True)
signal.pause()
"""


@contextmanager
def listening(path: str = "") -> Iterator[tuple[subprocess.Popen[str], int | str]]:
    command = [sys.executable, "-c", LISTEN, path, "--max-num-seqs", "64"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        place = ready_line(process).split()[1]
        try:
            yield process, path or int(place)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # both


def test_a_port_leads_to_its_processes_and_what_they_were_started_with() -> None:
    with listening() as (process, port):
        listener = find_listener(port)
        assert listener is not None
        assert listener.pids[0] == process.pid
        assert listener.arguments[-2:] == ("--max-num-seqs", "64")
        assert listener.open_files is not None
        assert listener.open_files > 0
        assert listener.shared_memory_bytes is not None
        assert listener.started(process.pid)
        assert all(listener.started(pid) for pid in listener.pids)
        assert not listener.started(os.getpid())  # its parent


def test_api_processes_that_share_a_port_are_counted() -> None:
    with listening() as (_, port):
        deadline = 200
        while (listener := find_listener(port)) is None or not listener.api_processes:
            deadline -= 1
            assert deadline, "no child with the title"
        assert (len(listener.pids), listener.api_processes) == (2, 1)


def test_a_socket_in_the_file_system_leads_to_its_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "an engine.sock")
    assert find_listener(path) is None
    with listening(path) as (process, place), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        listener = find_listener(place)
        assert listener is not None
        assert listener.pids[0] == process.pid
        assert listener.arguments[-2:] == ("--max-num-seqs", "64")
    deadline = time.monotonic() + 10  # the child was killed too, and has the socket until the kernel has ended it
    while find_listener(path) is not None:
        assert time.monotonic() < deadline, "the file is still there, and nobody listens"


def test_a_port_that_nobody_listens_on_leads_to_nobody() -> None:
    (port,) = free_ports(1)
    assert find_listener(int(port)) is None
    with socket.socket() as bound:  # without listening
        bound.bind(("127.0.0.1", int(port)))
        assert find_listener(int(port)) is None


@pytest.mark.parametrize(
    ("host", "local", "loopback"),
    [
        ("127.0.0.1", True, True),
        ("localhost", True, True),
        ("0.0.0.0", True, False),
        ("192.0.2.1", False, False),  # for documentation only
        ("no-such-host.invalid", False, False),
    ],
)
def test_which_hosts_are_this_one(host: str, local: bool, loopback: bool) -> None:
    assert (is_local(host), is_loopback(host)) == (local, loopback)
