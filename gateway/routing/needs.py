"""Compares what a request needs beyond plain generation with what backends can do.

In: needs and backends. Out: the backends that lack something, or the error that names the field. Knows neither load
nor readiness.
"""

from collections.abc import Collection, Mapping

from gateway.core import Backend, Needs
from gateway.errors import InvalidRequest


def find_lacking(needs: Needs, backends: Mapping[str, Backend]) -> frozenset[str]:
    """Returns the names of the backends that do not meet all of the needs."""
    return frozenset(name for name, backend in backends.items() if not needs.keys() <= backend.capabilities)


def make_refusal(needs: Needs, backends: Collection[Backend], by: str) -> InvalidRequest:
    """Makes the error for needs that none of `backends`, in words `by`, meets alone. `param`: the first field unmet."""
    for need, field in needs.items():
        if not any(need in backend.capabilities for backend in backends):
            return InvalidRequest(f"{field!r} is not supported by {by}.", param=field)
    fields = list(dict.fromkeys(needs.values()))
    together = " and ".join(map(repr, fields))
    return InvalidRequest(f"{together} together are not supported by {by}.", param=fields[0])
