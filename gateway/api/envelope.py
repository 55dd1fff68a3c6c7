"""What a request carries beside its body: its id, when it came, and the gateway's own headers.

Headers in, an Envelope out, or the error that names the header. Knows no body.
"""

import hmac
import re
import uuid
from dataclasses import dataclass

from gateway.api.client import Client
from gateway.errors import InvalidRequest, Unauthorized

RUN_FORM = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """`created` is in Unix seconds, `arrived` on the metrics' clock."""

    request_id: str
    created: int
    arrived: float
    pin: str | None = None
    run: str | None = None


def mint_request_id() -> str:
    """Ours, never a client's: two clients may send the same one, and the engines tell requests apart by it."""
    return uuid.uuid4().hex


def read_pin(client: Client, operator_key: str | None) -> str | None:
    """The backend that the caller insists on; an operator's privilege where keys are on. Raises Unauthorized."""
    pin = client.header(b"x-crossover-pin")
    if pin is not None and operator_key is not None:
        sent = client.header(b"authorization") or ""
        # In constant time, or the answer's delay would tell how much of a guess is right.
        if not hmac.compare_digest(f"Bearer {operator_key}".encode(), sent.encode()):
            raise Unauthorized("x-crossover-pin needs the header Authorization: Bearer <operator key>.")
    return pin


def read_run(client: Client) -> str | None:
    """The load-test run that sent it. Raises InvalidRequest."""
    run = client.header(b"x-crossover-run")
    if run is not None and not RUN_FORM.fullmatch(run):
        raise InvalidRequest("x-crossover-run must be 1 to 128 of A-Z a-z 0-9 . _ : -", param="x-crossover-run")
    return run
