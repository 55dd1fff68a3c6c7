"""What the limits of its key make of a request before it is placed: which model, which priority, how many tokens.

In: limits, a body's JSON or what was read of it. Out: the same within the limits, or the error. Pure.
"""

import re
from dataclasses import replace

import orjson

from gateway.access import Limits
from gateway.errors import InvalidRequest
from gateway.header import Lines
from gateway.openai.models import unknown_model
from gateway.openai.sampling import TIERS
from gateway.serving.token_lane import TokenWork
from gateway.wire.body import Body
from gateway.wire.parse import read_model

MOST_TOKENS = 10**9  # of any answer
TOKEN_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
READ = frozenset({"model", "n", "best_of", "prompt", "priority", "service_tier", *TOKEN_LIMITS})  # of relayed bodies
ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")  # nobody writes one who does not hide a name
PRIORITY_FIELD = b"x-vllm-priority:"


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


def restrain_body(
    body: bytes, document: dict[str, object], limits: Limits, *, takes_priority: bool
) -> tuple[bytes, int]:
    """Returns a body with one model and no higher priority than is allowed, and its priority here.

    `takes_priority`: every engine that may get it does. Raises InvalidRequest.
    """
    # A server may read one in capitals.
    fields = {name: value for name, value in document.items() if name in READ or name.casefold() not in READ}
    first = limits.priority
    if first is not None:
        asked, tier = document.get("priority"), document.get("service_tier")
        if any(priority < min(first, 1) for name, priority in TIERS.items() if name == tier):
            fields = {name: value for name, value in fields.items() if name != "service_tier"}
        is_within = asked is None and (first <= 0 or not takes_priority)
        if not is_within and not (type(asked) is int and asked >= first):  # engines convert "-5" and -5.0
            fields = {**fields, "priority": first}
    return (body if fields == document else _encode(fields)), max(0, first or 0)


def make_plain(body: bytes, document: dict[str, object]) -> bytes:
    """Returns a body in which each field that the gateway reads stands once, with the value read here: where there are
    two, this is the last one, and a server may take the first. Raises InvalidRequest.
    """
    is_plain = all(body.count(b'"%b"' % name.encode()) == 1 for name in READ.intersection(document))
    return body if is_plain and ESCAPED_LETTER.search(body) is None else _encode(document)


def _encode(document: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as exc:  # which gives up before its parser does
        raise InvalidRequest("The body is nested too deeply.") from exc


def restrain_lines(lines: Lines, limits: Limits) -> Lines:
    """Returns header fields without the one that vLLM reads in place of a body's priority."""
    return lines if limits.priority is None else tuple(each for each in lines if not each.startswith(PRIORITY_FIELD))


def read_token_limit(document: dict[str, object]) -> int | None:
    """Returns how many tokens a client wants at most, as far as a body that is not read shows it."""
    longest = max(_read_number(document.get(name)) for name in TOKEN_LIMITS)
    return int(min(longest, MOST_TOKENS)) if longest >= 1 else None


def _read_number(value: object) -> float:
    """Returns it as engines convert it; 0 for what is no number."""
    try:
        number = float(value) if isinstance(value, str | float | int) else 0.0
    except ValueError:
        return 0.0
    return max(0.0, number)  # in this order 0 for one that is NaN
