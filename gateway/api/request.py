"""What a client sent beside its body. Knows nothing of HTTP's framing or of OpenAI."""

from contextlib import suppress

from gateway.core import Fields


class Request:
    """`path`: without the query. `target`: path and query as they were sent. `fields`: names in lower case."""

    __slots__ = ("_values", "fields", "path", "target")

    def __init__(self, path: str, target: bytes, fields: Fields) -> None:
        self.path = path
        self.target = target
        self.fields = fields
        self._values: dict[bytes, bytes] = dict(fields)

    def header(self, name: bytes) -> str | None:
        value = self._values.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def length(self) -> int:
        """What content-length says; 0 without one. A nonsensical one is the server's affair."""
        with suppress(KeyError, ValueError):
            return int(self._values[b"content-length"])
        return 0
