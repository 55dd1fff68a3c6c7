"""The engines' own figures, beside the gateway's: how many requests each holds, and the identity that it reports.

Figures to show and to warn by, never to route by. What an engine does not report is unknown, not 0. How a kind of
engine is read stands in engine_kinds/.
"""

from gateway.evidence.engine import Engine, Reader, open_engines
from gateway.evidence.fingerprint import Change
from gateway.evidence.gather import RoutingView, gathering
from gateway.evidence.gauges import EvidenceCollector
from gateway.evidence.http import Http, NoAnswer, Silence
from gateway.evidence.latest import EvidenceSpans, LatestEvidence
from gateway.evidence.values import Evidence, Identity, Place

__all__ = [
    "Change",
    "Engine",
    "Evidence",
    "EvidenceCollector",
    "EvidenceSpans",
    "Http",
    "Identity",
    "LatestEvidence",
    "NoAnswer",
    "Place",
    "Reader",
    "RoutingView",
    "Silence",
    "gathering",
    "open_engines",
]
