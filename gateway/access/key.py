"""A key: what the key file holds of it, and what a request's caller is known by. Pure.

A secret has 256 random bits, so nobody finds it from its SHA-256 by trying: a salt or a slow hash would add nothing but
time to every request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from secrets import token_urlsafe
from typing import Annotated, Self

from pydantic import AwareDatetime, ConfigDict, Field, with_config

from gateway.access.limits import Limits

PREFIX = "sk-crossover-"  # scanners find leaked keys by such a beginning
SECRET_BYTES = 32
ID_DIGITS = 8
OPERATOR_KEY = "operator_key"  # the name of the configuration's own

NAME_FORM = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


class Scope(StrEnum):
    """What a key is for."""

    INFERENCE = "inference"
    LOADTEST = "loadtest"
    OPERATOR = "operator"

    __hash__ = str.__hash__  # an Enum's own is Python, and every request looks up a scope


# A load test asks for answers; an operator calibrates, which is a load test.
INCLUDED: Mapping[Scope, frozenset[Scope]] = {
    Scope.INFERENCE: frozenset({Scope.INFERENCE}),
    Scope.LOADTEST: frozenset({Scope.LOADTEST, Scope.INFERENCE}),
    Scope.OPERATOR: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of a key, all that it may do, and how much."""

    name: str
    scopes: frozenset[Scope]
    limits: Limits | None = None


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Key:
    """One key. After a rotation a name has two valid ones until the older one expires; limits are for both together."""

    name: Annotated[str, Field(pattern=NAME_FORM)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)]
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None
    limits: Limits | None = None

    @property
    def id(self) -> str:
        return self.sha256[:ID_DIGITS]

    def is_valid(self, now: datetime) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)

    def find_state(self, now: datetime) -> str:
        return "valid" if self.is_valid(now) else "revoked" if self.revoked else "expired"

    def caller(self) -> Caller:
        return Caller(self.name, include(self.scopes), self.limits)

    @classmethod
    def make(cls, name: str, scopes: tuple[Scope, ...], now: datetime, expires: datetime | None) -> tuple[Self, str]:
        """Returns a new key and its secret, which is kept nowhere."""
        secret = PREFIX + token_urlsafe(SECRET_BYTES)
        return cls(name, sha256(secret.encode()).hexdigest(), scopes, now, expires), secret


def include(scopes: tuple[Scope, ...]) -> frozenset[Scope]:
    """Returns the scopes with those that they include."""
    return frozenset().union(*(INCLUDED[scope] for scope in scopes))
