"""The operator key: without one configured every caller is an operator, with one only who sends it as bearer token."""

import hmac
from typing import Annotated

from fastapi import Header

from gateway.errors import Unauthorized


class OperatorKey:
    """A FastAPI dependency that raises Unauthorized."""

    def __init__(self, key: str | None) -> None:
        self._expected = None if key is None else f"Bearer {key}".encode()

    def __call__(self, authorization: Annotated[str, Header(include_in_schema=False)] = "") -> None:
        # Compared in constant time, or the answer's delay would tell how much of a guess is right.
        if self._expected is not None and not hmac.compare_digest(self._expected, authorization.encode()):
            raise Unauthorized("this route needs the header Authorization: Bearer <operator key>")
