"""The routing policies, one file each: all that the gateway knows of one is in its file, and its line in POLICIES.

A policy is a frozen dataclass: its fields are its keys in crossover.yaml and in the admin JSON and the options of
`crossover policy set`, each with its form and its meaning. It reads no clock and sees neither HTTP nor sockets.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import InitErrorDetails

from gateway.routing.policies.curve import Curve, EngineModel, NodeModel
from gateway.routing.policies.share import Share
from gateway.routing.policies.single import Single
from gateway.routing.policies.spillover import Spillover
from gateway.routing.policies.threshold import Threshold
from gateway.routing.policies.two_backends import TwoBackends
from gateway.settings import make_problem

__all__ = [
    "KEYS",
    "POLICIES",
    "READERS",
    "SCHEMAS",
    "Curve",
    "EngineModel",
    "NodeModel",
    "Share",
    "Single",
    "Spillover",
    "Threshold",
    "TwoBackends",
    "read_policy",
]

POLICIES: Mapping[str, type[TwoBackends]] = {
    "threshold": Threshold,
    "share": Share,
    "spillover": Spillover,
    "curve": Curve,
}
DEFAULT_KIND = "threshold"

# Each kind's JSON schema: its meaning, and the type, the bounds and the meaning of each of its keys.
SCHEMAS: Mapping[str, Mapping[str, Any]] = {  # Any: JSON
    kind: TypeAdapter(policy).json_schema() for kind, policy in POLICIES.items()
}
# What makes a policy of each kind of its keys.
READERS: Mapping[str, Callable[[object], TwoBackends]] = {
    kind: TypeAdapter(policy).validate_python for kind, policy in POLICIES.items()
}
# The keys of all kinds in the order in which they are shown, and each one's JSON schema.
KEYS: Mapping[str, Mapping[str, Any]] = {
    key: schema for policy in SCHEMAS.values() for key, schema in policy["properties"].items()
}


def read_policy(section: object) -> TwoBackends:
    """Reads a policy from its keys and `kind`. Null means no entry. Raises ValidationError, which names the key."""
    if not isinstance(section, Mapping):
        raise make_problem("must be a mapping")
    keys = {key: value for key, value in section.items() if value is not None}
    kind = keys.pop("kind", DEFAULT_KIND)
    if kind not in tuple(POLICIES):
        raise _make_error("kind", f"must be {' or '.join(POLICIES)}", kind)
    for key, value in keys.items():
        if key in KEYS and key not in SCHEMAS[kind]["properties"]:
            raise _make_error(key, f"is no key of kind {kind}", value)
    return READERS[kind](keys)


def _make_error(key: str, message: str, value: object) -> ValidationError:
    details = InitErrorDetails(type=make_problem(message), loc=(key,), input=value)
    return ValidationError.from_exception_data("policy", [details])
