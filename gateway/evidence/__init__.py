"""What engines say of themselves, beside what the gateway believes: their own count of requests, and who they are.

Figures to show and to warn by, never to route by; an engine that tells nothing is unknown, not 0.
"""

from gateway.evidence.fingerprint import Change, find_changes
from gateway.evidence.readers import open_engines
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place
from gateway.evidence.watch import Ledger, Watch, watching

__all__ = [
    "UNKNOWN",
    "Change",
    "Evidence",
    "Identity",
    "Ledger",
    "Place",
    "Watch",
    "find_changes",
    "open_engines",
    "watching",
]
