"""What backends can do beyond plain generation, and what it means when an engine cannot follow a guide.

In: what an adapter knows of its server, what the operator says of it, a request. Knows no wire.
"""

from gateway.core import GenerateRequest, Need
from gateway.errors import InvalidRequest
from gateway.settings import Capabilities


def corrected(own: frozenset[Need], capabilities: Capabilities) -> frozenset[Need]:
    """`own` as the operator corrects it."""
    granted = {need for need, has in capabilities.items() if has}
    denied = {need for need, has in capabilities.items() if not has}
    return (own | granted) - denied


def unusable_guide(request: GenerateRequest) -> InvalidRequest:
    """For a schema, an expression or a grammar that is wrong, or beyond what the engine's library can do."""
    field = request.needs.get(Need.GUIDE)
    what = "The guide of this request" if field is None else repr(field)
    return InvalidRequest(f"{what} asks for a form that the engine cannot hold its answer to.", param=field)
