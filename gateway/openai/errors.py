"""A GatewayError in, OpenAI's error out: a JSON body, or the last event of a stream."""

import orjson

from gateway.errors import GatewayError
from gateway.wire.errors import ErrorForm


def error_body(error: GatewayError, _request_id: str = "") -> bytes:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return orjson.dumps({"error": fields})


def error_event(error: GatewayError) -> bytes:
    """Returns the last event, no [DONE]: openai-python raises on `error`; a client that ignores it sees no success."""
    return b"data: " + error_body(error) + b"\n\n"


OPENAI_ERRORS = ErrorForm(error_body, error_event)
