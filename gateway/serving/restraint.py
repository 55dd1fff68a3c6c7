"""What the limits of its key make of a request before it is placed: which model, which priority, how many tokens.

In: limits, a body's JSON or what was read of it. Out: the same within the limits, or the error. Pure.
"""

from dataclasses import replace

import orjson

from gateway.access import Limits
from gateway.openai.models import unknown_model
from gateway.openai.sampling import TIERS
from gateway.serving.token_lane import TokenWork
from gateway.wire.body import Body
from gateway.wire.parse import read_model

MOST_TOKENS = 10**9  # of any answer
TOKEN_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def check_model(limits: Limits, document: dict[str, object]) -> None:
    """Raises ModelNotFound for one that is not allowed, as for one that does not exist."""
    if not limits.allows(document.get("model")):
        raise unknown_model(read_model(document))


def restrain_work(work: TokenWork, body: Body, limits: Limits) -> TokenWork:
    """Returns it with no higher priority than is allowed, and with whether its client limits the answer."""
    generations, first = work.generations, limits.priority
    if first is not None and generations.request.priority < first:
        requests = [replace(each, params=replace(each.params, priority=first)) for each in generations.requests]
        generations = replace(generations, requests=tuple(requests))
    return replace(work, generations=generations, is_limited=body.token_limit[1] is not None)


def restrain_body(body: bytes, document: dict[str, object], limits: Limits) -> tuple[bytes, int]:
    """Returns a body that asks its engine for no higher priority than is allowed, and its priority here."""
    if (first := limits.priority) is None:
        return body, 0
    asked, tier = document.get("priority"), document.get("service_tier")
    lowered: dict[str, object] = {}
    if asked is not None and not (type(asked) is int and asked >= first):  # engines convert "-5" and -5.0
        lowered["priority"] = first
    if any(priority < first for name, priority in TIERS.items() if name == tier):
        lowered["service_tier"] = "default"
    return (orjson.dumps({**document, **lowered}) if lowered else body), max(0, first)


def read_token_limit(document: dict[str, object]) -> int | None:
    """Returns how many tokens a client wants at most, as far as a body that is not read shows it."""
    for name in TOKEN_LIMITS:
        if type(count := document.get(name)) is int and count > 0:
            return min(count, MOST_TOKENS)
    return None
