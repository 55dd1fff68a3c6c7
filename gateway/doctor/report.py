"""Renders a Report for people and for programs.

In: a Report. Out: text, empty where all is well unless it is to be verbose, or a JSON document.
"""

import json
from collections.abc import Iterator

from gateway.doctor.faults import Finding, Severity
from gateway.doctor.statements import FEATURES, Statement, Topic
from gateway.doctor.subjects import EngineReport, Report


def render_text(report: Report, *, is_verbose: bool) -> str:
    """Returns findings, errors first; with `is_verbose` also what is proved of every engine, with the sources."""
    blocks = [_render_finding(finding) for finding in _by_severity(report)]
    if is_verbose:
        blocks += [_render_engine(engine) for engine in report.engines if engine.is_reached]
    return "\n\n".join(blocks)


def render_json(report: Report) -> str:
    """Returns findings and `engines`: the identity of each, as calibrations record it, and its account."""
    document = {
        "findings": [
            {
                **{name: getattr(finding.fault, name) for name in ("code", "severity", "meaning", "cure")},
                "where": finding.where,
                "seen": finding.seen,
            }
            for finding in _by_severity(report)
        ],
        "engines": {
            engine.subject.where: {
                "identity": dict(engine.identity),
                "account": {
                    topic: {"value": statement.value, "source": statement.source}
                    for topic, statement in engine.account.items()
                },
            }
            for engine in report.engines
        },
    }
    return json.dumps(document, indent=2)


def _by_severity(report: Report) -> list[Finding]:
    return sorted(report.findings, key=lambda finding: list(Severity).index(finding.fault.severity))


def _render_finding(finding: Finding) -> str:
    fault = finding.fault
    return "\n".join((
        f"{fault.severity}: {fault.code}: {finding.where}",
        f"  seen: {finding.seen}",
        f"  means: {fault.meaning}",
        f"  cure: {fault.cure}",
    ))


def _render_engine(engine: EngineReport) -> str:
    return "\n".join((f"{engine.subject.where}:", *_describe(engine)))


def _describe(engine: EngineReport) -> Iterator[str]:
    for topic in dict.fromkeys((*FEATURES, *engine.account)):
        statement = engine.account.get(topic)
        yield f"  {topic}: {'unknown' if statement is None else f'{_describe_value(statement)}, by {statement.source}'}"
    yield f"  identity: {', '.join(f'{name}={value}' for name, value in engine.identity.items()) or 'unknown'}"


def _describe_value(statement: Statement) -> str:
    if statement.topic in {Topic.CAPACITY, Topic.CONTEXT_LENGTH, Topic.GPU_SHARE}:
        return f"{statement.value:g}"
    return (("off", "on") if statement.topic in FEATURES else ("no", "yes"))[bool(statement.value)]
