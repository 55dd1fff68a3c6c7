"""`crossover doctor`: checks whether the features credited to engines are on and whether the node fits together.

In: settings, and the servers that they name. Out: findings, each with its cure. engine_kinds/ looks at
each kind of engine.
"""

from gateway.doctor.examination import examine
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.report import render_json, render_text
from gateway.doctor.statements import FEATURES, Statement, Topic, make_account
from gateway.doctor.subjects import EngineReport, Means, Options, Report, Subject

__all__ = [
    "FEATURES",
    "EngineReport",
    "Fault",
    "Finding",
    "Means",
    "Options",
    "Report",
    "Statement",
    "Subject",
    "Topic",
    "examine",
    "make_account",
    "render_json",
    "render_text",
]
