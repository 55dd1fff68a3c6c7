"""Whether what an engine is credited with is on, and whether the node fits together: `crossover doctor`.

In: settings, and the servers that they name. Out: findings, each with its cure.
"""

from gateway.doctor.examination import Report, examine
from gateway.doctor.faults import Fault, Finding, Severity
from gateway.doctor.report import render_json, render_text
from gateway.doctor.sights import Question
from gateway.doctor.statements import FEATURES, Topic

__all__ = [
    "FEATURES",
    "Fault",
    "Finding",
    "Question",
    "Report",
    "Severity",
    "Topic",
    "examine",
    "render_json",
    "render_text",
]
