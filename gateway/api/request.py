"""What a client sent beside its body. Knows nothing of HTTP's framing or of OpenAI."""

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
        length = self._values.get(b"content-length", b"")
        return int(length) if length.isdigit() else 0
