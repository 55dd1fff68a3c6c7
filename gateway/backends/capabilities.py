"""Which needs a backend serves beyond plain generation, and the error for a guide that an engine cannot follow.

In: the needs that an adapter knows of, the operator's settings, a request. Knows no wire.
"""

from gateway.core import GenerateRequest, Need
from gateway.errors import InvalidRequest
from gateway.settings import Capabilities


def apply_overrides(own: frozenset[Need], overrides: Capabilities) -> frozenset[Need]:
    """Returns `own` with the operator's settings applied."""
    granted = {need for need, has in overrides.items() if has}
    denied = {need for need, has in overrides.items() if not has}
    return (own | granted) - denied


def guide_error(request: GenerateRequest) -> InvalidRequest:
    """Returns the error for a schema, an expression or a grammar that is wrong, or that the engine does not support."""
    field = request.needs.get(Need.GUIDE)
    what = "The guide of this request" if field is None else repr(field)
    return InvalidRequest(f"{what} asks for a form that the engine cannot hold its answer to.", param=field)
