"""Questions to a server on this machine, before it is up and while it runs; each is answered within two seconds."""

import http.client
import json
import urllib.request
from typing import Any

TIMEOUT_S = 2.0
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a proxy does not see this machine's ports


def answers(url: str) -> bool:
    """Whether GET gives a 200."""
    try:
        with _open(url, timeout=TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def read_json(url: str) -> Any:  # whatever the server sends
    """The parsed answer of GET. OSError if there is none; ValueError if it is not JSON."""
    with _open(url, timeout=TIMEOUT_S) as response:
        return json.load(response)


def sees_every_backend(gateway: str) -> bool:
    """Whether the gateway at this URL is up and finds every backend of every model ready."""
    try:
        models = read_json(f"{gateway}/ready")["models"]
        return all(all(backends.values()) for backends in models.values())
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return False  # nobody there, or somebody else's answer
