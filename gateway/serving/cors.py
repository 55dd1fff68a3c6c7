"""Which origins' pages may read the answers, as browsers ask it (the Fetch standard's CORS protocol).

In: a request's head. Out: header fields. Starlette's middleware would not see the answers that leave past ASGI.
"""

from collections.abc import Collection, Sequence

from gateway.client_http import RequestHead
from gateway.header import make_line

ANY = "*"
# What scripts may read of an answer beside the fields that every one may read.
EXPOSED = b"access-control-expose-headers: server-timing, x-crossover-backend, x-crossover-reason, x-request-id"
VARY = b"vary: origin"  # a cache may not give one origin's answer to another
PREFLIGHT = (
    b"access-control-allow-methods: GET, POST, OPTIONS",
    b"access-control-max-age: 600",  # seconds
)
USUAL_FIELDS = "authorization, content-type"


class Cors:
    """Finds the header fields for pages of `origins`; there are none without origins.

    No page may send cookies: a key goes in a field of its own.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def find_lines(self, head: RequestHead) -> Sequence[bytes]:
        """Returns the fields of an answer to this request, as they go on the wire; no permission for other pages."""
        if not self._origins or (origin := head.field(b"origin")) is None:
            return ()
        if ANY in self._origins:
            return (b"access-control-allow-origin: *", EXPOSED)
        if origin not in self._origins:
            return (VARY,)
        return (make_line((b"access-control-allow-origin", origin.encode("latin-1"))), EXPOSED, VARY)

    def find_preflight(self, head: RequestHead) -> Sequence[bytes] | None:
        """Returns the further fields of the answer to a preflight request; None if its page may send none."""
        origin = head.field(b"origin")
        if origin is None or self._origins.isdisjoint({origin, ANY}):
            return None
        # Their names as the browser sent them: which ones a page needs is no secret, and no field is dangerous here.
        asked = head.field(b"access-control-request-headers") or USUAL_FIELDS
        return (*PREFLIGHT, make_line((b"access-control-allow-headers", asked.encode("latin-1"))))
