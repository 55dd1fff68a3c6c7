"""Crossover's own header fields of a request, and the ids that it gives requests.

In: a request's head. Out: the run, or the error that names the field. Knows no body.
"""

import re
from secrets import randbits, token_hex

from gateway.client_http import RequestHead
from gateway.errors import InvalidRequest

RUN_FORM = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Makes request ids. None is a client's: two clients may send the same, and engines know requests by their ids.

    An id has 32 hexadecimal digits: 16 random ones of this process, 16 that count.
    """

    def __init__(self) -> None:
        self._prefix = token_hex(8)
        self._count = randbits(32)

    def mint(self) -> str:
        self._count += 1
        return self._prefix + self._count.to_bytes(8).hex()


def read_run(head: RequestHead) -> str | None:
    """Returns the load-test run that sent the request. Raises InvalidRequest."""
    run = head.field(b"x-crossover-run")
    if run is not None and not RUN_FORM.fullmatch(run):
        raise InvalidRequest("x-crossover-run must be 1 to 128 of A-Z a-z 0-9 . _ : -", param="x-crossover-run")
    return run
