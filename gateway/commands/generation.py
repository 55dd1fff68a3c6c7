"""A generation of `crossover serve` as a process: reads the configuration as it is now, and supervises its workers.

In: an order on stdin, as JSON, since who wrote it may be of an earlier version. Out: words on the leash, an exit code.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gateway.address import make_url
from gateway.commands.access import FAILED, MISTAKEN, CannotStart, check_access
from gateway.commands.options import ServeOptions
from gateway.commands.supervisor import Origin, Supervisor, report_failure
from gateway.configuration import SettingsError, default_path, load_settings
from gateway.node import Node
from gateway.restarts import Board, Standing
from gateway.settings import MAX_WORKERS, Settings
from gateway.shared import Predecessor
from gateway.state_folder import FolderTaken, claim

Order: TypeAlias = Mapping[str, Any]  # Any: JSON, of whatever version wrote it


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the first process's affair; workers inherit this
    order: Order = json.load(sys.stdin)
    with socket.socket(fileno=order["leash"]) as leash:
        try:
            sys.exit(asyncio.run(_run(order, leash)))
        except CannotStart as exc:
            report_failure(leash, str(exc))
            sys.stderr.writelines(f"crossover serve: {problem}\n" for problem in exc.problems)
            sys.exit(exc.code)


async def _run(order: Order, leash: socket.socket) -> int:
    settings = _read_settings(order)
    options = ServeOptions(settings.log_level, order["access_log"], order["drain_timeout_s"])
    options.configure_logging()
    check_access(settings)
    fixed = [f"{settings.listen_host}:{settings.listen_port}", str(settings.state_folder)]
    if order["listener"] is None:
        listener, lock = _bind(settings.listen_host, settings.listen_port), _claim(settings.state_folder)
    else:
        listener, lock = socket.socket(fileno=order["listener"]), None
        if order["fixed"] != fixed:
            raise CannotStart(MISTAKEN, "listen and state_folder change by a stop and a start only")
    predecessors = {each["number"]: Predecessor.open(each["map"], each["places"]) for each in order["predecessors"]}
    origin = Origin(listener, Board(order["board"]), predecessors, order["drained"])

    def announce(node: Node) -> None:
        assert node.fd is not None  # its workers have it
        ready = {"url": make_url(*listener.getsockname()[:2]), "fixed": fixed, "places": node.places()}
        fds = [node.fd] if order["listener"] is not None else [node.fd, listener.fileno(), *([lock] if lock else ())]
        socket.send_fds(leash, [json.dumps(ready).encode()], fds)
        if lock is not None:
            os.close(lock)  # it ends with the process that has it now, however long answers here still take

    return await Supervisor(settings, options, origin, leash, announce).run()


def _read_settings(order: Order) -> Settings:
    path = Path(order["config"]) if order["config"] else default_path()
    try:
        settings = load_settings(path)
    except SettingsError as exc:
        raise CannotStart(MISTAKEN, *(f"{path}: {problem}" for problem in exc.problems)) from exc
    workers = order["workers"] or settings.workers
    if workers > MAX_WORKERS:
        raise CannotStart(MISTAKEN, f"--workers: {MAX_WORKERS} at most")
    if workers > 1 and settings.responses.keep == "memory":
        raise CannotStart(MISTAKEN, "responses.keep: memory is each worker's own; several workers need file")
    allow_anonymous = order["allow_anonymous"] or settings.allow_anonymous
    return replace(settings, workers=workers, allow_anonymous=allow_anonymous)


def _bind(host: str, port: int) -> socket.socket:
    """Binds before anything slow, so that a taken port is known at once. Connections are accepted when all is ready."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only if the protocol is named; on, it can hold a small write for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise CannotStart(FAILED, f"cannot listen on {host}:{port}: {exc.strerror}") from exc
    return listener


def _claim(folder: Path | None) -> int | None:
    """Keeps other gateways off the state folder, so that none overwrites what another one keeps."""
    try:
        return None if folder is None else claim(folder)
    except FolderTaken as exc:
        try:
            holder = f"the gateway with pid {Standing.decode(exc.words).pid}"
        except ValueError:  # it has just started
            holder = "another gateway"
        raise CannotStart(FAILED, f"{holder} keeps its state in {folder}") from exc


if __name__ == "__main__":
    main()
