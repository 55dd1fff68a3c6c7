"""EngineKind: all that the gateway knows of one kind of engine. ENGINE_KINDS has one of each kind."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.core import RelayBackend, TokenBackend
from gateway.doctor import EngineReport, Means, Subject
from gateway.evidence import Http, Reader
from gateway.settings import BackendSettings

S = TypeVar("S", bound=BackendSettings)
R = TypeVar("R", bound=Reader)


@dataclass(frozen=True, slots=True)
class EngineKind(Generic[S, R]):
    """One kind of engine. `settings`: its section of crossover.yaml, a frozen dataclass whose fields have forms.

    `open_tokens`: its backend on the token lane, for a model with that many token ids. `open_relay`: its backend on the
    relay lane. None: that lane does not lead to it. `open_reader`: reads its figures for evidence/. `look`: how the
    doctor examines it, all but its process and its log.
    """

    settings: type[S]
    open_tokens: Callable[[S, int], TokenBackend] | None
    open_relay: Callable[[S], RelayBackend] | None
    open_reader: Callable[[S, Http], R]
    look: Callable[[Subject, S, R, Means], Awaitable[EngineReport]]
