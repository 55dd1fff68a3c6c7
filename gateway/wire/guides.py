"""A client's JSON schema in, the guide that an engine is held to by it out."""

import orjson

from gateway.core import Guide, GuideKind
from gateway.errors import InvalidRequest
from gateway.language import make_holdable


def schema_guide(schema: dict[str, object], field: str) -> Guide:
    """Returns the guide that a schema of `field` makes. Raises InvalidRequest for one that no answer can be held to."""
    held, unheld = make_holdable(schema)
    if unheld is not None:
        raise InvalidRequest(f"'{field}' has a schema with {unheld}, to which no answer can be held.", param=field)
    return Guide(GuideKind.JSON_SCHEMA, orjson.dumps(held).decode())
