"""The operator key: if one is configured, a caller has to send it as bearer token; if none is, every caller may act."""

import hmac
from typing import Annotated

from fastapi import Header

from gateway.errors import Unauthorized


class OperatorKey:
    """A FastAPI dependency that raises Unauthorized."""

    def __init__(self, key: str | None) -> None:
        self._expected = None if key is None else f"Bearer {key}".encode()

    def __call__(self, authorization: Annotated[str, Header(include_in_schema=False)] = "") -> None:
        # Compared in constant time: else the answer's delay would show how much of a guess is right.
        if self._expected is not None and not hmac.compare_digest(self._expected, authorization.encode()):
            raise Unauthorized("this route needs the header Authorization: Bearer <operator key>")
