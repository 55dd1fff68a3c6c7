"""Reads answers of a gateway on this machine, before it is ready and after."""

import http.client
import json
from typing import Any

from engines import process

TIMEOUT_S = 2.0


def read_json(url: str) -> Any:  # whatever the server sends
    """Returns the parsed answer of GET. Raises OSError if none comes, and ValueError if it is not JSON."""
    with process.open_direct(url, timeout=TIMEOUT_S) as response:
        return json.load(response)


def sees_every_backend(gateway: str) -> bool:
    """Returns whether the gateway at this URL is up and finds every backend of every model ready."""
    try:
        models = read_json(f"{gateway}/ready")["models"]
        return all(all(backends.values()) for backends in models.values())
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return False  # no server there, or one of somebody else's
