"""How much a key may use: its limits as the key file holds them, and what errors and headers report of them.

In: limits, what is in use, what a request may take. Out: header fields, or the error that names the limit.
"""

import time
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, with_config

from gateway.errors import BudgetSpent, RateLimited
from gateway.header import Fields

MINUTE_S, DAY_S = 60, 86_400
MOST = 10**12
Amount: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit. `in_flight` counts choices; `tokens_per_day` is for a day in UTC; `models` may be asked for.

    `priority`: the first one that its requests may have; lower goes first.
    """

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    in_flight: Amount | None = None
    tokens_per_day: Amount | None = None
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    priority: Annotated[int, Field(ge=-8, le=7)] | None = None

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__slots__}
        words = {name: ",".join(of) if isinstance(of, tuple) else of for name, of in shown.items() if of is not None}
        return " ".join(f"{name}={word}" for name, word in words.items()) or "none"

    def allows(self, model: object) -> bool:
        return self.models is None or model in self.models


class Ask(NamedTuple):
    """What a request may take. `answer_tokens`: of each sequence, by the client's own limit; None: it sets none."""

    sequences: int
    prompt_tokens: int
    answer_tokens: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """What a key has in use. Minutes' figures fall all the time. Tokens include `reserved`, for what is under way."""

    requests_per_minute: int
    tokens_per_minute: int
    in_flight: int
    tokens_per_day: int
    reserved: int = 0


def check(name: str, limits: Limits, use: Use, asked: Use) -> None:
    """Raises RateLimited or BudgetSpent where a request that takes `asked` is beyond a limit."""
    for limit, retry_s, words in (
        ("in_flight", 0, "{most} in flight: it has {used} choices under way, and this request asks for {more}."),
        ("requests_per_minute", MINUTE_S, "{most} requests a minute: it has sent {used} of late."),
        ("tokens_per_minute", MINUTE_S, "{most} tokens a minute: {used} are in use, and this request may take {more}."),
        ("tokens_per_day", 0, "{most} tokens a day (UTC): {used} are in use, and this request may take {more}."),
    ):
        most, used, more = (getattr(each, limit) for each in (limits, use, asked))
        if most is None or used + more <= most:
            continue
        reason = f"The limit of key {name} is {words.format(most=most, used=used, more=more)}"
        reason += " It asks for more than there ever is." if more > most else ""
        fields = describe(limits, use)
        if limit == "tokens_per_day" and used - use.reserved + more > most:  # else what is under way may leave enough
            fields = (*fields, (b"x-should-retry", b"false"))  # which official clients obey
            raise BudgetSpent(reason, retry_after_s=DAY_S - int(time.time()) % DAY_S, fields=fields)
        raise RateLimited(reason, retry_after_s=max(-(-(used + more - most) * retry_s // most), 1), fields=fields)


def describe(limits: Limits, use: Use) -> Fields:
    """Returns OpenAI's header fields. A reset is when nothing will be in use, if nothing more is sent."""
    fields: list[tuple[bytes, bytes]] = []
    for unit in ("requests", "tokens"):
        most, used = (getattr(each, f"{unit}_per_minute") for each in (limits, use))
        if most is not None:
            reset = _format_span(-(-used * MINUTE_S * 1000 // most))
            values = {"limit": str(most), "remaining": str(max(most - used, 0)), "reset": reset}
            fields += [(f"x-ratelimit-{name}-{unit}".encode(), value.encode()) for name, value in values.items()]
    return tuple(fields)


def _format_span(milliseconds: int) -> str:
    """Returns it as OpenAI writes it: 120ms, 1s, 6m0s."""
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(-(-milliseconds // 1000), MINUTE_S)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
