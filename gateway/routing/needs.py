"""What requests need beyond plain generation, held against what backends can do.

In: needs and backends. Out: who lacks something, or the error that names the field. Knows no load and no readiness.
"""

from collections.abc import Collection, Mapping

from gateway.core import Backend, Needs
from gateway.errors import InvalidRequest


def find_lacking(needs: Needs, backends: Mapping[str, Backend]) -> frozenset[str]:
    """Names of the backends that cannot do all of it."""
    return frozenset(name for name, backend in backends.items() if not needs.keys() <= backend.capabilities)


def make_refusal(needs: Needs, backends: Collection[Backend], whom: str) -> InvalidRequest:
    """For needs that none of `backends` meets alone. `param` is the first field that no one of them supports."""
    for need, field in needs.items():
        if not any(need in backend.capabilities for backend in backends):
            return InvalidRequest(f"{field!r} is not supported by {whom}.", param=field)
    fields = list(dict.fromkeys(needs.values()))
    together = " and ".join(map(repr, fields))
    return InvalidRequest(f"{together} together are not supported by {whom}.", param=fields[0])
