"""What engines say of themselves, beside what the gateway believes: their own count of requests, and who they are.

Figures to show and to warn by, never to route by; an engine that tells nothing is unknown, not 0.
"""

from gateway.evidence.board import Board, BoardSpans
from gateway.evidence.fingerprint import Change, Fingerprint, find_changes
from gateway.evidence.gather import Routing, gathering
from gateway.evidence.gauges import EvidenceCollector
from gateway.evidence.readers import open_engines
from gateway.evidence.sockets import Transport, through
from gateway.evidence.stale import StaleWarning
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place
from gateway.evidence.watch import Watch, watching

__all__ = [
    "UNKNOWN",
    "Board",
    "BoardSpans",
    "Change",
    "Evidence",
    "EvidenceCollector",
    "Fingerprint",
    "Identity",
    "Place",
    "Routing",
    "StaleWarning",
    "Transport",
    "Watch",
    "find_changes",
    "gathering",
    "open_engines",
    "through",
    "watching",
]
