"""The processes of this machine that listen at an address, and what the kernel knows of them. On Linux only.

In: a port, or a socket's path. Out: a Listener; None where no process that we may look at has it: an engine on another
machine or behind a container's port, another user's process, another system than Linux.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"  # TCP_LISTEN of the kernel's tcp_states.h
ACCEPTS = 0x10000  # __SO_ACCEPTCON of its net.h: marks the sockets with a path that accept connections
API_SERVER = "::APIServer_"  # how vLLM titles each of several API processes


@dataclass(frozen=True, slots=True)
class Listener:
    """A server's processes. `pids`: all that have its sockets open, the oldest first. `arguments`: the oldest's."""

    pids: tuple[int, ...]
    arguments: tuple[str, ...]
    api_processes: int
    open_files: int | None
    shared_memory_bytes: int | None

    def started(self, pid: int) -> bool:
        """Returns whether a process is one of these or descends from one."""
        return not set(self.pids).isdisjoint(_ancestry(pid))


def is_local(host: str) -> bool:
    """Returns whether a name is one of this machine's: a socket can be bound only to its own addresses."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def find_listener(place: int | str) -> Listener | None:
    """Finds the server that listens at `place`: a TCP port, or the path of a socket in the file system."""
    inodes = set(_inodes_on_port(place) if isinstance(place, int) else _inodes_at_path(place))
    numbers = [int(entry.name) for entry in PROC.glob("[0-9]*")] if inodes else []
    pids = tuple(sorted(pid for pid in numbers if not inodes.isdisjoint(_socket_inodes(pid))))
    if not pids:
        return None
    return Listener(
        pids=pids,
        arguments=_arguments(pids[0]),
        api_processes=sum(API_SERVER in " ".join(_arguments(pid)) for pid in pids),
        open_files=_open_files_limit(pids[0]),
        shared_memory_bytes=_shared_memory(pids[0]),
    )


def _inodes_on_port(port: int) -> Iterator[str]:
    """Reads /proc/net/tcp and tcp6: `sl local_address rem_address st ... inode`, the port in hexadecimal."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _inodes_at_path(path: str) -> Iterator[str]:
    """Reads /proc/net/unix: `Num RefCount Protocol Flags Type St Inode Path`, the flags in hexadecimal."""
    with suppress(OSError):
        for line in (PROC / "net" / "unix").read_text(errors="replace").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if fields[7:] == [path] and int(fields[3], 16) & ACCEPTS:
                yield fields[6]


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):  # it is gone, or another user's
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                if (found := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))) is not None:
                    yield found[1]


def _arguments(pid: int) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple((PROC / str(pid) / "cmdline").read_text(errors="replace").rstrip("\0").split("\0"))
    return ()


def _open_files_limit(pid: int) -> int | None:
    with suppress(OSError):
        found = re.search(r"Max open files +(\d+)", (PROC / str(pid) / "limits").read_text())
        return None if found is None else int(found[1])
    return None


def _shared_memory(pid: int) -> int | None:
    """Returns the size in bytes of the process's own /dev/shm, which in a container is the container's."""
    with suppress(OSError):
        filesystem = os.statvfs(PROC / str(pid) / "root" / "dev" / "shm")
        return filesystem.f_blocks * filesystem.f_frsize
    return None


def _ancestry(pid: int) -> Iterator[int]:
    """Yields the process itself, its parent, and so on."""
    while pid > 0:
        yield pid
        try:
            stat = (PROC / str(pid) / "stat").read_text()
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])  # the name before it may hold anything
