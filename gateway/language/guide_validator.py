"""Checks whether an engine can follow a guide: the guide's text in, its fault out, in the words of llguidance.

Some texts end the process that compiles them, so this module is also a program for a process of its own, which
gateway/serving/guide_checks.py starts. To start fast, it imports nothing of the gateway. Knows no request, no engine.
"""

import json
import os
import re
import resource
import signal
import sys
from contextlib import suppress

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

MAX_BYTES = 256 << 20  # {"minItems": 10**9} would take all memory; ordinary guides take some MB
MAX_CHARACTERS = 200
# llguidance's converter needs each rule on one line, xgrammar does not.
WITHIN_RULE = re.compile(r"\r?\n(?!\s*[\w-]+\s*::=)")


def find_fault(kind: str, text: str) -> str:
    """Returns the guide's fault, "" if there is none. `kind`: a core.GuideKind that has a text."""
    try:
        fault = LLMatcher.validate_grammar(_grammar(kind, text))
    except ValueError as exc:
        fault = str(exc)
    return _shorten(fault)


def _grammar(kind: str, text: str) -> str:
    """Returns the guide in llguidance's own form. Raises ValueError."""
    if kind == "json_schema":
        # Lenient, so that only wrong schemas are faults: engines' other libraries ignore `not` and accept `oneOf`.
        return LLMatcher.grammar_from_json_schema(text, overrides={"lenient": True, "coerce_one_of": True})
    if kind == "regex":
        return grammar_from("regex", text)
    return grammar_from("grammar", text if is_lark_syntax(text) else WITHIN_RULE.sub(" ", text))


def _shorten(fault: str) -> str:
    """Cuts the fault to its reason: the library's message repeats the whole text and marks the place."""
    reason = fault.rpartition("error: ")[2].strip()
    return reason.partition("\n")[0][:MAX_CHARACTERS]


def main() -> None:
    """Writes a line when ready, then reads a line and writes a line until the input ends.

    In: a number, kind, text and time limit in seconds. Out: the number and the fault. A forked process checks the
    guides. If a guide ends that process, a line of nulls is written and the next process is forked: a fork costs 3 ms,
    a new start 60 ms.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError):  # macOS has no such limit; a guide's time is bounded there too
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    _write_line(None, "")
    while os.fork():
        _, status = os.wait()
        if not status:
            return
        _write_line(None, None)
    for line in sys.stdin.buffer:
        number, kind, text, limit_s = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limit_s)  # its signal is not handled, so it ends this process
        fault = find_fault(kind, text)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write_line(number, fault)


def _write_line(number: int | None, fault: str | None) -> None:
    sys.stdout.write(json.dumps((number, fault)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
