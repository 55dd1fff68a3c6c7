"""Stands in for tritonserver with TensorRT-LLM's backend, one rank of a job of real Open MPI, or alone.

In: tritonserver's arguments. In the folder $STATE each rank notes its process id. Out: the
leader answers `GET /N` with N lines, one each 0.1 s.
It stops as the real ones do (Triton server v2.71.0, src/main.cc; TensorRT-LLM, model_instance_state.cc@c8c6df0,
executorImpl.cpp@036a60f, mpiUtils.cpp@0caf05f). No rank handles SIGTERM while its model loads, and all but the leader
load until the leader lets them go. On SIGTERM the leader gives its answers --exit-timeout-secs. If all end it lets the
other ranks go and exits with 0, else it exits with 1. Every rank calls MPI_Finalize when it exits.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))  # noqa: TID251 - set by mpirun
RANKS = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))  # noqa: TID251 - as above
STATE = Path(os.environ["STATE"])  # noqa: TID251 - set by the test
LOAD_S = float(os.environ.get("LOAD_S", "0"))  # noqa: TID251 - as above
LONGEST_S = 60  # however the test ends
GO = 1  # the message's tag


class Mpi:
    """What is used of MPI, by Open MPI's names: its constants are the addresses of these symbols."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self.world = ctypes.byref(ctypes.c_char.in_dll(self.library, "ompi_mpi_comm_world"))
        self.byte = ctypes.byref(ctypes.c_char.in_dll(self.library, "ompi_mpi_byte"))
        self.library.MPI_Init(None, None)
        atexit.register(self.library.MPI_Finalize)

    def let_go(self) -> None:
        for rank in range(1, RANKS):
            self.library.MPI_Send(ctypes.create_string_buffer(1), 1, self.byte, rank, GO, self.world)

    def wait(self) -> None:
        has_come = ctypes.c_int(0)
        while not has_come.value:
            time.sleep(0.02)
            self.library.MPI_Iprobe(0, GO, self.world, ctypes.byref(has_come), None)
        self.library.MPI_Recv(ctypes.create_string_buffer(1), 1, self.byte, 0, GO, self.world, None)


class Answers(BaseHTTPRequestHandler):
    running: set[int] = set()  # noqa: RUF012 - of the class: a handler lives for one request

    def do_GET(self) -> None:
        self.running.add(id(self))
        try:
            self.send_response(200)
            self.end_headers()
            for line in range(int(self.path[1:])):
                self.wfile.write(b"%d\n" % line)
                time.sleep(0.1)
            self.wfile.write(b"end\n")
        finally:
            self.running.remove(id(self))

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def main(options: dict[str, str]) -> int:
    signal.alarm(LONGEST_S)
    (STATE / f"rank{RANK}").write_text(str(os.getpid()))
    mpi = Mpi() if RANKS > 1 else None
    time.sleep(LOAD_S)
    if mpi is not None and RANK > 0:
        mpi.wait()
        return 0
    if not serve(options):
        return 1
    if mpi is not None:
        mpi.let_go()
    return 0


def serve(options: dict[str, str]) -> bool:
    """Until SIGTERM, and then until the last answer has ended: False if one has not in its time."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    server = ThreadingHTTPServer(("127.0.0.1", int(options["--http-port"])), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stopped.wait()
    end = time.monotonic() + float(options["--exit-timeout-secs"])
    while Answers.running and time.monotonic() < end:
        time.sleep(0.02)
    return not Answers.running


if __name__ == "__main__":
    sys.exit(main(dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)))
