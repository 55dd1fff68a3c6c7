"""The engines' own figures, beside the gateway's: how many requests each holds, and the identity that it reports.

The figures serve to show and to warn, never to route. What an engine does not report is unknown, not 0. engine_kinds/
reads each kind of engine.
"""

from gateway.evidence.engine import Engine, Reader, open_engines
from gateway.evidence.fingerprint import Change
from gateway.evidence.gather import RoutingView, gathering
from gateway.evidence.gauges import EvidenceCollector
from gateway.evidence.http import Http, NoAnswer, Silence
from gateway.evidence.latest import LatestEvidence
from gateway.evidence.values import Evidence, Identity, Place, Size

__all__ = [
    "Change",
    "Engine",
    "Evidence",
    "EvidenceCollector",
    "Http",
    "Identity",
    "LatestEvidence",
    "NoAnswer",
    "Place",
    "Reader",
    "RoutingView",
    "Silence",
    "Size",
    "gathering",
    "open_engines",
]
