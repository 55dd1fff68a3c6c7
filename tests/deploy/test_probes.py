"""The gateway's readiness as seen from outside, whoever answers on its port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deploy.ports import LOCALHOST, find_free
from deploy.probes import sees_every_backend


@contextmanager
def answering(body: str) -> Iterator[str]:
    """The URL of a server that says this to every GET."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_arguments: object) -> None:
            """Not on the tests' output."""

    with HTTPServer((LOCALHOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://{LOCALHOST}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("body", "is_ready"),
    [
        ('{"models": {"m": {"a": true, "b": true}}}', True),
        ('{"models": {"m": {"a": true, "b": false}}}', False),
        ("{}", False),
        ("[]", False),
        ("null", False),
        ('{"models": null}', False),
        ('{"models": {"m": 1}}', False),
        ("welcome", False),
    ],
)
def test_gateway_is_ready_only_by_an_answer_of_its_own_shape(body: str, is_ready: bool) -> None:
    with answering(body) as url:
        assert sees_every_backend(url) is is_ready


def test_gateway_that_nobody_answers_for_is_not_ready() -> None:
    [port] = find_free(1)
    assert not sees_every_backend(f"http://{LOCALHOST}:{port}")
