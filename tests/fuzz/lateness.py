"""A process that does the same every 10 ms and writes down how late each time was.

`python -m tests.fuzz.lateness` only sleeps; with a PORT it asks `GET /health` there, on one connection. When its input
ends, it prints [when, how late] of each, in seconds of time.monotonic, as JSON.
"""

import json
import select
import socket
import sys
import time

PERIOD_S = 0.01
PROBE = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def ask(connection: socket.socket) -> None:
    connection.sendall(PROBE)
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        piece = connection.recv(65_536)
        if not piece:
            raise RuntimeError(f"no answer but {answer!r}")
        answer += piece


def main(port: int | None) -> None:
    connection = None if port is None else socket.create_connection(("127.0.0.1", port))
    samples: list[tuple[float, float]] = []
    due = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        due = max(due + PERIOD_S, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))
        if connection is not None:
            ask(connection)
        samples.append((due, time.monotonic() - due))
    print(json.dumps(samples))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
