"""The engines' own figures, beside the gateway's: how many requests each holds, and the identity that it reports.

Figures to show and to warn by, never to route by. What an engine does not report is unknown, not 0. How a kind of
engine is read stands in engine_kinds/.
"""

from gateway.evidence.engine import Engine, Reader, open_engines
from gateway.evidence.fingerprint import Change, Fingerprint, find_changes
from gateway.evidence.gather import RoutingView, gathering
from gateway.evidence.gauges import EvidenceCollector
from gateway.evidence.http import Answer, Http, NoAnswer, Silence
from gateway.evidence.latest import EvidenceSpans, LatestEvidence
from gateway.evidence.stale_warning import StaleWarning
from gateway.evidence.values import UNKNOWN, Evidence, Identity, Place
from gateway.evidence.watch import Watch, watching

__all__ = [
    "UNKNOWN",
    "Answer",
    "Change",
    "Engine",
    "Evidence",
    "EvidenceCollector",
    "EvidenceSpans",
    "Fingerprint",
    "Http",
    "Identity",
    "LatestEvidence",
    "NoAnswer",
    "Place",
    "Reader",
    "RoutingView",
    "Silence",
    "StaleWarning",
    "Watch",
    "find_changes",
    "gathering",
    "open_engines",
    "watching",
]
