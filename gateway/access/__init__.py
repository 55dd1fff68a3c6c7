"""Who may do what: keys with scopes in a file of the state folder, and the hosts by which this gateway is called.

In: what a request's head presents. Out: who calls, or the error. Knows no body, no route and no engine.
"""

from gateway.access.access import Access
from gateway.access.hosts import OwnHosts
from gateway.access.key import Caller, Key, Scope
from gateway.access.key_file import KeyFile, KeyFileUnreadable, KeyRefused
from gateway.access.keyring import NEEDS_KEY, Keyring
from gateway.access.limits import Ask, Limits, Use
from gateway.access.meter import Claim, Meter
from gateway.access.usage import DayUse, UsageLog

__all__ = [
    "NEEDS_KEY",
    "Access",
    "Ask",
    "Caller",
    "Claim",
    "DayUse",
    "Key",
    "KeyFile",
    "KeyFileUnreadable",
    "KeyRefused",
    "Keyring",
    "Limits",
    "Meter",
    "OwnHosts",
    "Scope",
    "UsageLog",
    "Use",
]
